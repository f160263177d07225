"""Small templates that show one feature each, written for this test. V are
the variables that all of them see."""

V = {
    "s": "Hello, Wörld", "e": "", "n": 7, "f": 2.5, "t": True, "x": None, "l": [3, 1, 2], "ls": ["b", "A", "c", "a"],
    "d": {"b": 1, "a": {"k": [1, 2]}, "items": 5, "C": None}, "m": [{"r": "u", "c": "one", "n": {"k": 1}}, {"r": "a", "c": "two"}, {"r": "u", "c": "three", "n": {"k": 0}}],
    "q": "it's \"q\"\n\t\\ é \u2028 \x07 😀", "ml": "a\n  b\n\nc\r\nd", "big": 123456789012345678901234567890, "neg": -3, "html": "<p class=\"a\">1 &amp; 2</p> <!-- c --> it's", "words": ["alpha", "be-ta", "Gamma delta"], "pairs": [["k", 1], ["j", None]],
}

EXPRESSIONS = """
1 + 2 * 3 - 4 / 2, 7 // 2, -7 // 2, 7 % 3, -7 % 3, 2 ** 10, 2 ** -1, 7.5 // 2, -7.5 % 2, 1 / 3, 1e20, 1e16, 1e15, 0.0001, 0.00001, 1.0, 100.0, 2.50
10 / 2, True + 1, true and 3, 0 or 'x', not 1, not none, 1 < 2 < 3, 1 < 3 < 2, 1 == 1.0, 1 == true, 'a' < 'b', [1, 2] < [1, 3], (1, 2) == [1, 2]
'a' ~ 1 ~ none ~ 2.0 ~ true, 'a' 'b', 'ab' * 3, 3 * 'ab', [1] * 2, [1] + [2], 0x1F, 0b101, 0o17, 1_000, 1.5e3, 1E-7
s[0], s[-1], s[7], s[1:4], s[::-1], s[-3:], s[:-3], s[1:8:3], s[99:], s[2:1], l[0], l[-1], l[1:], l[::-1], l[5], l[0:2][1]
d.b, d['b'], d.a.k[1], d.a['k'][0], d.zz, d['zz'], d['items'], d.get('b'), d.get('zz'), d.get('zz', 9)
d.keys() | list, d.values() | list, d.items() | list, d | length, d.keys(), d.items(), d.values()
undefinedname, undefinedname | default('dd'), undefinedname is defined, d.zz is undefined, e | default('dd'), e | default('dd', true), x | default('dd')
'el' in s, 'xx' not in s, 3 in l, 'b' in d, 'zz' in d, 1 in d.values(), 'a' in undefinedname
n if t else e, (n if not t) is defined, n if false else f if true else s
s is string, n is number, n is integer, f is float, t is boolean, t is integer, x is none, d is mapping, l is sequence, s is sequence, s is iterable, n is iterable, d is iterable, undefinedname is iterable, undefinedname is sequence
n is odd, n is even, n is divisibleby 7, n is divisibleby(2), n is eq 7, n is equalto(7), n is gt 3, n is in [7], s is lower, 'ABC' is upper, t is true, t is false, 1 is sameas 1, x is sameas none
not n is odd, n is not odd, -n, +n, --n, -n | abs, - 3 | abs
s | upper, s | lower, s | title, 'hello wORLD-foo(bar' | title, s | capitalize, s | length, s | reverse, s | first, s | last, s | list
'  a b  ' | trim, 'xxaxx' | trim('x'), '  a'.strip(), 'xa'.lstrip('x'), 'ax'.rstrip('xa'), ' \\u00a0\\u2003x\\x1f '.strip()
'a,b,,c'.split(','), 'a b  c '.split(), 'a b c'.split(' ', 1), ' a b c '.split(none, 1), 'a,b,c'.rsplit(',', 1), ' a b c '.rsplit(none, 1), ''.split(), ''.split(','), 'a\\nb\\r\\nc\\n'.splitlines(), 'a\\nb\\n'.splitlines(true)
s.startswith('He'), s.endswith(('x', 'd')), s.find('l'), s.find('zz'), s.rfind('l'), s.index('ö'), s.count('l'), s.find('l', 4), s.count('l', 0, 3)
s.replace('l', 'LL'), s.replace('l', 'L', 1), s | replace('l', ''), n | replace(7, 8), ''.replace('', 'x'), 'ab'.replace('', '-')
', '.join(ls), ls | join, ls | join(', '), l | join('-'), m | join(', ', attribute='c'), [1, none, true] | join('|')
s.upper(), s.lower(), s.title(), s.capitalize(), s.swapcase(), 'ß'.upper(), 'Straße'.casefold(), '12'.isdigit(), 'a1'.isalnum(), 'ab'.isalpha(), ' '.isspace(), ''.isspace(), 'AB'.isupper(), 'Ab'.islower()
'a-b-c'.partition('-'), 'a-b-c'.rpartition('-'), 'abc'.partition('-'), 'abc'.rpartition('-'), 'prefix-x'.removeprefix('prefix-'), 'x.py'.removesuffix('.py'), 'a'.center(6, '*'), 'ab'.center(5), 'a'.ljust(3, '.'), 'a'.rjust(3), '-7'.zfill(4)
'{} {}'.format(1, 'a'), '{1} {0}'.format(1, 2), '{a}{{}}'.format(a=none), '%s and %d' | format('x', 3), '%s' % n, '%05.1f|%x|%-4d|' % (f, 255, 3), '%r' % 'a', '100%%' % ()
l | sort, l | sort(reverse=true), ls | sort, ls | sort(case_sensitive=true), m | sort(attribute='c') | map(attribute='c') | list, d | dictsort, d.a | dictsort, {'b': 2, 'a': 3} | dictsort(by='value'), {'b': 2, 'A': 3, 'a': 1} | dictsort(true)
m | map(attribute='c') | list, m | map(attribute='n.k', default='-') | list, ls | map('upper') | list, ls | map('replace', 'a', 'z') | list, l | map('string') | join
m | selectattr('r', 'equalto', 'u') | list | length, m | selectattr('n') | list | length, m | rejectattr('r', 'in', ['u']) | map(attribute='c') | list, l | select('odd') | list, l | reject('gt', 1) | list, [0, 1, none, 'a'] | select | list
l | sum, l | max, l | min, ls | max, m | sum(attribute='n.k', start=1) if false else 0, [[1], [2]] | sum(start=[]), [] | max is defined, ['a', 'B', 'A'] | unique | list, m | min(attribute='c')
l | first, l | last, [] | first, l | reverse | list, l | length, l | count, 'abc' | list, d | list, (1, 2, 3) | list, range(3) | list, range(1, 7, 2) | list, range(3, 0, -1) | list
'3' | int, '3.9' | int, 'x' | int, 'x' | int(5), '0x1f' | int(base=16), 3.9 | int, '2.5' | float, 'x' | float, true | int, 2.567 | round(2), 2.5 | round, 3.5 | round, 2.1 | round(method='ceil'), 2.9 | round(0, 'floor'), n | string, 3 | float
'<a href="x">&\\'' | e, '<b>' | escape | upper, '<b>' | safe, ('<i>' | safe) + '<b>', '<i>' + ('<b>' | safe), ('<i>' | safe) ~ '<b>', ('<i>' | e) | e
ml | indent, ml | indent(2), ml | indent(2, true), ml | indent('> ', first=true, blank=true), 'one' | indent, s | wordcount
d | tojson, l | tojson, q | tojson, x | tojson, t | tojson, f | tojson, 1e16 | tojson, big | tojson, [] | tojson, {} | tojson, (1, 2) | tojson, {1: 2, none: 3, true: 4, 2.5: 5} | tojson
d | tojson(indent=2), [[], {}, [1, {}]] | tojson(indent=4), d | tojson(separators=(',', ':')), q | tojson(ensure_ascii=true), d | tojson(sort_keys=true) if false else 0, {'b': 1, 'a': 2} | tojson(sort_keys=true, indent=0), [1] | tojson(indent='\\t')
d, l, ls, q, [q], [x, t, f, 1e100], (1,), (), {'k': (1, 'a')}, ["it's"], ['"', "'\\""], big, [big, '\\u00ad\\u200b\\x7f']
dict(a=1, b=2), dict([('a', 1)], b=2), {'a': 1, 'a': 2}, {1: 'a', 1.0: 'b', true: 'c'}
'\\n\\t\\x41\\u00e9\\U0001F600\\101\\q\\\\' ~ "a\\"b", 'it\\'s'
loop is defined, range is defined, namespace is callable, s is callable, 'upper' is filter, 'nofilter' is filter
s | upper | lower | length + 1, (s | length) + 1, n * 2 | string, -1 ** 2, 2 ** 3 ** 2, 1 - 1 - 1, 2 * 3 % 4, not 1 == 2, 1 in [1] == true
m[0].n.k, m[1].n is defined, m[-1]['c'], m[1].n.k is defined if m[1].n else 'no', m.0.c
l.index(1), l.count(3), (1, 2).index(2), d.copy() == d, l == [3, 1, 2], d != {}, [1, [2, {'a': 3}]] == [1, [2, {'a': 3.0}]]
x.a, x['a'] is undefined, n.a is undefined, s.a is undefined, l.a is undefined, l['a'] is undefined, s['upper'] is defined, 'abc'[1.0] is undefined
[1, 2, 3,], (1, 2,), {'a': 1,}, [], {}, range(2,) | list, dict(a=1,)
(l | map('string')) is iterable, (l | map('string')) is sequence, d.items() is sequence, d.items() is iterable, (m | map(attribute='c')) | first, not (l | select('gt', 9))
x | map('upper') | list, '' | select | list, 0 | map('upper') | list, undefinedname | list, undefinedname | length, undefinedname | join, undefinedname | map('upper') | list, undefinedname | first
""".strip().splitlines()

FAILING = """
1 / 0 ;; 1 // 0 ;; 1 % 0 ;; 'a' + 1 ;; none + 'a' ;; 'a' < 1 ;; undefinedname + 'a' ;; undefinedname.a ;; undefinedname['a'] ;; undefinedname() ;; n() ;; s.nomethod()
x | length ;; n | list ;; 1 in 2 ;; 'a' in none ;; l.append(1) ;; d.update({}) ;; d.pop('b') ;; l | nofilter ;; l is notest ;; [] | join(1, 2, 3) ;; range(0, 1, 0) ;; {[]: 1}
x.a.b ;; d.zz.a ;; 'a'.join([1]) ;; 'a'.split('') ;; 'x'.index('y') ;; s.startswith(1) ;; l[:] + (1,) ;; d + d ;; -s ;; undefinedname | tojson ;; (l | map('string')) | tojson ;; (l | map('string')) | length
d.items() | tojson ;; d.items()[0].x ;; '{}'.format() ;; '%d' % 'a' ;; '%s %s' % 1 ;; raise_exception('no: ' ~ n) ;; raise_exception(x) ;; dict(1) ;; 'a' * 'b' ;; [1] - [1] ;; l | sort(attribute='zz.y') ;; [1, 'a'] | sort ;; [{}] | unique | list
2 ** 'a' ;; s | int(1, 2, 3) ;; loop.index ;; caller() ;; s(1) ;; namespace(1) ;; x is divisibleby 2 ;; n is divisibleby 0 ;; 'a' is odd ;; s | round ;; l | first(1) ;; s | trim(1)
""".strip().replace("\n", " ;; ")

TEMPLATES = [
    "{% for i in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{{ loop.revindex0 }}:{{ i }};{% endfor %}",
    "{% for i in l %}{{ loop.previtem }}<{{ i }}>{{ loop.nextitem }}|{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }},{% else %}none{% endfor %}{% for k in [] %}x{% else %}empty{% endfor %}",
    "{% for (a, b), c in [((1, 2), 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}{% for a, b in ['xy', [1, 2]] %}{{ a }}{{ b }}{% endfor %}",
    "{% for i in l if i > 1 %}{{ loop.index }}:{{ i }}{{ loop.last }} {% endfor %}{% for i in range(9) if i is odd %}{% if i == 5 %}{% break %}{% endif %}{% if i == 3 %}{% continue %}{% endif %}{{ i }}{% endfor %}",
    "{% for i in l %}{% for j in l %}{{ loop.index }}{{ i }}{{ j }}{% if j == 1 %}{% break %}{% endif %} {% endfor %}{{ loop.index }}|{% endfor %}",
    "{% for i in l %}{{ loop.cycle('a', 'b') }}{{ loop.changed(i > 1) }}{{ loop.depth }}{% endfor %}",
    "{% set x = 1 %}{% for i in l %}{{ x }}{% set x = i %}{{ x }}{% endfor %}{{ x }}",
    "{% set ns = namespace(c=0, s='') %}{% for i in l %}{% set ns.c = ns.c + i %}{% set ns.s = ns.s ~ i %}{% endfor %}{{ ns.c }}{{ ns.s }}{{ ns.zz is defined }}",
    "{% if n == 7 %}{% set y = 1 %}{% else %}{% set y = 2 %}{% endif %}{{ y }}{% if e %}a{% elif x %}b{% elif t %}c{% else %}d{% endif %}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set (c, d2) = [3, 4] %}{{ c }}{{ d2 }}{% set g = 1, %}{{ g }}",
    "{% set c %}text {{ n }}\n{% endset %}[{{ c }}]{% set c | upper | trim %} abc {% endset %}[{{ c }}]{% filter upper %}x{{ s }}{% endfilter %}",
    "{% macro f(a, b=2, c=a) %}{{ a }}-{{ b }}-{{ c }}{% endmacro %}{{ f(1) }} {{ f(1, 3) }} {{ f(b=5, a=4) }} {{ f(1, c=9) }} [{{ f() }}]",
    "{% macro f() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, 'a', z=3) }}",
    "{% macro r(i) %}{{ i }}{% if i > 0 %}{{ r(i - 1) }}{% endif %}{% endmacro %}{{ r(4) }}",
    "{% macro w(t) %}<{{ t }}>{{ caller() }}</{{ t }}>{% endmacro %}{% call w('b') %}in {{ n }}{% endcall %}",
    "{% macro w() %}{{ caller(1, 2) }}{{ caller(3, 4) }}{% endmacro %}{% call(a, b) w() %}{{ a }}{{ b }};{% endcall %}",
    "{% macro f() %}{{ later }}{% endmacro %}{% set later = 5 %}{{ f() }}{% for i in [1] %}{% set later = 6 %}{{ f() }}{% endfor %}{{ f() | length }}",
    "{% macro f(x) %}{{ x }}{{ y is defined }}{% endmacro %}{% for y in [1] %}{{ f(y) }}{% endfor %}",
    "{% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}{{ a is defined }}{% with %}{% set z = 1 %}{{ z }}{% endwith %}{{ z is defined }}",
    "{%- for i in [[1, [2]], [3]] recursive %}({% for j in i %}{% endfor %}{{ i if i is number else loop(i) }}){% endfor %}",
    "{% raw %}{{ a }}{% if %}{% endraw %}|{%- raw -%}  x  {%- endraw -%}  |",
    "{# comment {{ x }} #}a{#- b -#} c {# d #}\ne",
    "a\n  {% if t %}\n  b\n  {% endif %}\n  c\n", "a\n  {%- if t %}\n  b\n  {%- endif %}\n  c\n", "a\n  {%+ if t %}\n  b\n  {%+ endif +%}\n  c\n",
    "a  {{- n -}}  b  {{ n }}  c\n{{ n }}\nd", "  {% set y = 1 %}  {{ y }}", "{% if t %}\n\nx\n\n{% endif %}\n\n", "x {% if t %} y {% endif %} z\n\n\n",
    "\t {% if t -%} \n a \n {%- endif %} b", "line\r\n{% if t %}\r\nx\r\n{% endif %}\r\n", "{% if t %}a{% endif %}\n{# c #}\nb", "  {# c #}  x", "{{ n }}\n", "\n\n{{ n }}\n\n",
    "  {%- set a = 1 -%}  \n {% set b = 2 %} \n {{- a }} {{ b -}} \n", "é\u00a0{%- if t %}x{% endif %}", "{%if t%}a{%endif%}{{n}}{{-n-}}",
    "{{ {'a': {'b': 1}} }}{{ {'a':{}}['a'] }}{{ '}}' }}{{ \"%}\" }}", "{{ strftime_now('%d %b %Y %B %A %a %H:%M:%S %I %p %y %j %-d %-m %% %e') }}",
    "{% generation %}a{% set z = 1 %}{{ z }}{% endgeneration %}{{ z is defined }}", "{% set j = joiner(', ') %}{% for i in l %}{{ j() }}{{ i }}{% endfor %}{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}",
    "{% set g = l | map('string') %}{{ g | join }}{{ g | join }}", "{% set g = m | map(attribute='c') %}{% for i in g %}{{ i }}{{ loop.last }}{% endfor %}",
    "{% for m2 in m %}{% if loop.previtem is defined and loop.previtem.r != m2.r %}!{% endif %}{{ m2.c }}{% endfor %}",
    "{% for c in 'añ😀' %}[{{ c }}]{% endfor %}{% for k in d %}{{ k }}{% endfor %}{% for u in undefinedname %}x{% endfor %}",
    "{% for i in x %}{% endfor %}", "{% for i in 5 %}{% endfor %}", "{% if %}{% endif %}", "{% foo %}", "{{ }}", "{{ a b }}", "{% if t %}", "{% endif %}", "{{ 'a }}", "{{ (1 }}", "{{ 1) }}", "{% for %}{% endfor %}",
    "{# open", "{% raw %}x", "{% set %}", "{% set x.y = 1 %}", "{% set ns = namespace() %}{% set ns._a = 1 %}", "{{ 1 is odd is even }}", "{% macro f(a=1, b) %}{% endmacro %}", "{% break %}", "{{ f(a=1, 2) }}", "{% else %}", "{{ a. }}", "{{ 1 + }}", "{{ @ }}",
    "{% for i in range(100001) %}{% endfor %}", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "{% call f() %}{% endcall %}", "{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}", "{% macro f(a) %}{% endmacro %}{{ f(b=2) }}", "{% macro f(a) %}{% endmacro %}{{ f(1, a=2) }}",
]

CHATML = ("{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nBe helpful.<|im_end|>\n' }}{% endif %}"
          "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")

LLAMA3 = """{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}
    {{- "Environment: ipython\\n" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- "Today Date: " + strftime_now("%d %b %Y") + "\\n\\n" + system_message + "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '{"name": "' + tool_call.name + '", "parameters": ' }}{{- tool_call.arguments | tojson }}{{- "}<|eot_id|>" }}
    {%- else %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}{{- message.content | tojson }}{%- else %}{{- message.content }}{%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

QWEN3 = """{%- set ns = namespace(last=messages|length - 1, searching=true) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.searching and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>')) %}
        {%- set ns.searching = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == "assistant" %}
        {%- set reasoning = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last and (loop.last or reasoning) %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {%- for call in message.tool_calls or [] %}
            {{- '\\n<tool_call>\\n{"name": "' ~ call.function.name ~ '", "arguments": ' }}
            {{- call.function.arguments if call.function.arguments is string else call.function.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or messages[loop.index0 - 1].role != "tool" %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != "tool" %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}
"""

MISTRAL = """{%- if messages and messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace(index=0) %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or message.role == "tool_results" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("After the optional system message, conversation roles must alternate user/assistant/user/assistant/...") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS]" }}{{- tools | tojson }}{{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST]" + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST]" + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" and message.tool_calls is not defined %}
        {{- " " + message["content"]|trim + eos_token }}
    {%- elif message["role"] == "tool" %}
        {{- '[TOOL_RESULTS]{"content": ' + message.content|string + ', "call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- elif message.tool_calls is defined %}
        {{- "[TOOL_CALLS][" }}{%- for c in message.tool_calls %}{{- c.function | tojson }}{%- if not loop.last %}{{- ", " }}{%- endif %}{%- endfor %}{{- "]" + eos_token }}
    {%- else %}
        {{- raise_exception("Only user, assistant and tool roles are supported!") }}
    {%- endif %}
{%- endfor %}
"""

STYLES = {"chatml": CHATML, "llama3": LLAMA3, "qwen3": QWEN3, "mistral": MISTRAL}


def all_templates():
    """(template, variables) for every snippet."""
    for line in EXPRESSIONS:
        for one in split_commas(line):
            yield "{{ " + one + " }}", V
    for one in FAILING.split(" ;; "):
        yield "{{ " + one + " }}", V
    for t in TEMPLATES:
        yield t, V


def split_commas(text):
    """Splits at commas outside of brackets and strings."""
    parts, depth, quote, start = [], 0, None, 0
    for i, c in enumerate(text):
        if quote:
            if c == quote and text[i - 1] != "\\":
                quote = None
        elif c in "'\"":
            quote = c
        elif c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
        elif c == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    parts.append(text[start:].strip())
    return parts
