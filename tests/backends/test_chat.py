"""The chat backend keeps the promises of every backend."""

from backends.cases import Cases
from backends.rig_chat import ChatRig


class TestChat(Cases):
    rig = ChatRig()
