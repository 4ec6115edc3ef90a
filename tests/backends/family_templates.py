# ruff: noqa: RUF001 - the marks of DeepSeek hold a wide bar
"""Small chat templates, made here, that write calls with the marks of each family of models."""

FRAME = """\
{{# {signs} #}}
{{%- if tools %}}{{{{ '<|im_start|>system\\n' + (tools | tojson) + '<|im_end|>\\n' }}}}{{% endif %}}
{{%- for message in messages %}}
    {{{{- '<|im_start|>' + message.role + '\\n' }}}}
    {{%- if message.reasoning_content %}}{{{{ '{think[0]}\\n' + message.reasoning_content + '\\n{think[1]}\\n\\n' }}}}{{% endif %}}
    {{{{- message.content or '' }}}}
    {{%- set calls = message.tool_calls or [] %}}
    {{%- if calls %}}{calls}{{% endif %}}
    {{{{- '<|im_end|>\\n' }}}}
{{%- endfor %}}
{{{{- '<|im_start|>assistant\\n' }}}}
"""

OBJECTS = """{{- '%s[' }}{% for call in calls %}
{{- '{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) + '%s}' }}
{{- ', ' if not loop.last }}{% endfor %}{{ ']%s' }}"""

TAGS = """{{- '%s' }}{%% for call in calls %%}{{ '%s' + call.function.name + '%s' }}
{%%- for key, value in call.function.arguments.items() %%}
{{- '%s' + key + '%s' + (value if value is string else value | tojson) + '%s' }}{%% endfor %%}
{{- '%s' }}{%% endfor %%}{{ '%s' }}"""

QWEN = """{% for call in calls %}{{ '\\n<tool_call>\\n<function=' + call.function.name + '>\\n' }}
{%- for key, value in call.function.arguments.items() %}
{{- '<parameter=' + key + '>\\n' + (value if value is string else value | tojson) + '\\n</parameter>\\n' }}{% endfor %}
{{- '</function>\\n</tool_call>' }}{% endfor %}"""

GLM = """{% for call in calls %}{{ '\\n<tool_call>' + call.function.name + '\\n' }}
{%- for key, value in call.function.arguments.items() %}
{{- '<arg_key>' + key + '</arg_key>\\n<arg_value>' + (value if value is string else value | tojson) + '</arg_value>\\n' }}
{%- endfor %}{{ '</tool_call>' }}{% endfor %}"""

KIMI = """{{- '<|tool_calls_section_begin|>' }}{% for call in calls %}
{{- '<|tool_call_begin|>' + call.id + '<|tool_call_argument_begin|>' }}
{{- call.function.arguments if call.function.arguments is string else call.function.arguments | tojson }}
{{- '<|tool_call_end|>' }}{% endfor %}{{ '<|tool_calls_section_end|>' }}"""

DEEPSEEK = """{{- '<｜tool▁calls▁begin｜>' }}{% for call in calls %}
{{- '<｜tool▁call▁begin｜>function<｜tool▁sep｜>' + call.function.name + '\\n```json\\n' + call.function.arguments }}
{{- '\\n```<｜tool▁call▁end｜>' + ('' if loop.last else '\\n') }}{% endfor %}{{ '<｜tool▁calls▁end｜>' }}"""

DEEPSEEK_31 = """{{- '<｜tool▁calls▁begin｜>' }}{% for call in calls %}
{{- '<｜tool▁call▁begin｜>' + call.function.name + '<｜tool▁sep｜>' + call.function.arguments + '<｜tool▁call▁end｜>' }}
{%- endfor %}{{ '<｜tool▁calls▁end｜>' }}"""

MISTRAL = """{% for call in calls %}{{ '[TOOL_CALLS]' + call.function.name + '[ARGS]' }}
{{- call.function.arguments if call.function.arguments is string else call.function.arguments | tojson }}{% endfor %}"""

MISTRAL_3 = """{{- '[TOOL_CALLS] [' }}{% for call in calls %}
{%- if call.id | length != 9 %}{{ raise_exception('ids have nine letters') }}{% endif %}
{{- (call.function | tojson)[:-1] + ', "id": "' + call.id + '"}' + ('' if loop.last else ', ') }}{% endfor %}{{ ']' }}"""

LLAMA = """{% if calls | length > 1 %}{{ raise_exception('one call at a time') }}{% endif %}
{%- set call = calls[0].function %}
{{- '{"name": "' + call.name + '", "parameters": ' + (call.arguments | tojson) + '}' }}"""

HERMES = """{% for call in calls %}
{{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) }}
{{- '}\\n</tool_call>' }}{% endfor %}"""

CALLS = {
    "minimax-m2": TAGS
    % (
        "\\n<minimax:tool_call>\\n",
        '<invoke name="',
        '">\\n',
        '<parameter name="',
        '">',
        "</parameter>\\n",
        "</invoke>\\n",
        "</minimax:tool_call>",
    ),
    "seed-oss": TAGS
    % (
        "\\n<seed:tool_call>\\n",
        "<function=",
        ">\\n",
        "<parameter=",
        ">",
        "</parameter>\\n",
        "</function>\\n",
        "</seed:tool_call>",
    ),
    "qwen3-coder": QWEN,
    "glm-4": GLM,
    "kimi-k2": KIMI,
    "deepseek-v3": DEEPSEEK,
    "deepseek-v3.1": DEEPSEEK_31,
    "mistral": MISTRAL,
    "mistral-v3": MISTRAL_3,
    "granite-3": OBJECTS.replace("%s", "<|tool_call|>", 1).replace("%s", ""),
    "phi-4-mini": OBJECTS.replace("%s", "<|tool_call|>", 1).replace("%s", "", 1).replace("%s", "<|/tool_call|>"),
    "llama-3": LLAMA,
    "hermes": HERMES,
}
SIGNS = {
    "granite-3": "<|start_of_role|>",
    "llama-3": "<|start_header_id|>ipython",
}
THINK = {"seed-oss": ("<seed:think>", "</seed:think>"), "mistral": ("[THINK]", "[/THINK]")}


def template(family: str) -> str:
    return FRAME.format(
        signs=SIGNS.get(family, ""), think=THINK.get(family, ("<think>", "</think>")), calls=CALLS[family]
    )
