"""The scripted backend keeps the promises of every backend."""

from backends.cases import Cases
from backends.rig_scripted import ScriptedRig


class TestScripted(Cases):
    rig = ScriptedRig()
