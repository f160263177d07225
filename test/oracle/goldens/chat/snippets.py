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
# The rarer filters, each with its arguments.
d | attr('items') is callable, d | attr('b') is defined, s | attr('upper') is callable, s | attr('nope'), s | attr('__class__') is defined, ns | attr('x'), {'update': 1} | attr('update') is defined
html | forceescape, '<b>' | safe | forceescape, ('<b>' | e) | forceescape, 5 | forceescape, l | forceescape, none | e, undefinedname | e, l | escape, 'a"b\'c' | e | e
7 | round, 7 | round(2), 7 | round(-1), 15 | round(-1), 25 | round(-1), -15 | round(-1), 25.0 | round(-1), 25.5 | round(-1), 7 | round(1, 'ceil'), 2.345 | round(2), 2.675 | round(2), -2.5 | round, -2.5 | round(method='ceil'), 1e300 | round(2), true | round, 0.5 | round(0, 'common'), 1.005 | round(2, 'floor'), big | round(-3), 2.5 | round(precision=0)
'0b101' | int(0, 2), '0o17' | int(base=8), '0x1F' | int(0, 16), '1F' | int(0, 16), 'z' | int(0, 36), ' 12 ' | int, '1_000' | int, '1__0' | int(7), '-5' | int, '+5' | int, '' | int(3), '1e3' | int, '12.9' | int, 'inf' | int(4), 'nan' | int(4), none | int(4), [] | int(4), 1e20 | int, -2.9 | int, false | int, '0x1F' | int(0, 0), '010' | int(0, 0), '9' * 30 | int, '5' | int(1, 99)
'1_0.5' | float, ('inf' ~ e) | float, '-nan' | float, '1e400' | float, ' 2.5 ' | float, '0x10' | float(3), none | float(1.5), [] | float('x'), big | float, true | float, '' | float, '.5' | float, '5.' | float, '1e-3' | float
-5 | abs, -2.5 | abs, true | abs, big | abs, neg | abs
m | map(attribute='n', default=5) | list, m | map(attribute='n.k', default=none) | list, ls | map('replace', 'a', 'z', 1) | list, l | map('default', 5) | list, d | map('upper') | list, [[1, 2], [3]] | map('first') | list, m | map(attribute='c') | map('length') | sum, ['a', 'b'] | map('indent', width=2, first=true) | list, pairs | map(attribute=1) | list, pairs | map(attribute='0') | list, pairs | map('last') | list
[1, 'a', none, 2.5] | select('string') | list, [1, 2, 3] | select('divisibleby', 2) | list, [1, 2] | reject('sameas', 2) | list, [0, 1, ''] | reject | list, m | selectattr('n.k', '>=', 1) | list | length, m | rejectattr('n') | list | length, m | selectattr('c', 'in', ['one']) | map(attribute='r') | list, [1, 2, 3] | select('==', 2) | list, [{'a': none}, {'a': 1}] | selectattr('a', 'none') | list, [undefinedname, 1] | select('defined') | list, words | select('lower') | list
[3, 1, 2] | sort | first, ['b', 'A'] | sort(false, true), m | sort(attribute='r,c') | map(attribute='c') | list, m | sort(attribute='zz') | length, m | sort(true, attribute='c') | map(attribute='c') | list, [(2, 'a'), (1, 'b')] | sort, [[1, 2], [1]] | sort, [none, none] | sort, [true, 0, 2.5] | sort, pairs | sort(attribute=0), 'hello' | sort | join, d | sort, words | sort(attribute='0') | first
[2, 'a'] | max is defined if false else 1, ['a', 'B'] | max, ['a', 'B'] | max(case_sensitive=true), ['a', 'B'] | min(true), [1, 1.0, true] | max, [1, 1.0, true] | min, m | max(attribute='c'), [] | min, d | max, [2.5, big] | max, 'hello' | min
[1, 1.0, true, 'a', 'A'] | unique | list, ['a', 'A', 'b'] | unique(true) | list, m | unique(attribute='r') | map(attribute='c') | list, [] | unique | list, [none, none, undefinedname] | unique | list, [(1,), (1,)] | unique | list, 'hello' | unique | join
[1, 2.5, true] | sum, [[1], [2]] | sum(start=[0]), [(1,)] | sum(start=()), m | sum('n.k', 1) is defined if false else 2, [] | sum, [] | sum(start=5), [1] | sum(start=2.5), {1: 2, 3: 4} | sum, l | sum(start=big)
d | items | list, undefinedname | items | list, {} | items | list, d | items | first, d | dictsort | first, d | dictsort(reverse=true) | first, {'b': 'x', 'a': 'Y'} | dictsort(by='value'), {'b': 'x', 'a': 'Y'} | dictsort(true, 'value'), {2: 1, 1: 2} | dictsort(false, 'key', true), {} | dictsort
[1, 2, 3] | last, 'abc' | last, d | last, range(3) | last, () | last, undefinedname | last, {1: 2} | first, d.items() | last, d.keys() | first, [] | first is defined
[1, 2] | reverse | list, d | reverse | list, d.items() | reverse | first, range(3) | reverse | list, (l | map('string') | reverse) | length, '' | reverse, 'añ😀' | reverse, undefinedname | reverse | list
'a-b' | replace('-', ''), 5 | replace(5, none), s | replace('l', 'L', 1), s | replace('l', 'L', -1), s | replace('l', 'L', 0), '' | replace('', 'x'), 'aa' | replace('a', 'b', count=1), l | replace(1, 2), none | replace('None', 'x')
ml | indent(width='>'), ml | indent(2, blank=true), ml | indent(0, true), '' | indent, '\n' | indent(1, true, true), 'a\u2028b' | indent(1), 'a\x0bb\x1cc' | indent(1), ml | indent(-3), ml | indent(true)
'  a ' | trim, 'xaxbx' | trim('x'), 'xaxbx' | trim(chars='xb'), 5 | trim, none | trim, ' a ' | trim(none), '\u00a0a\u3000' | trim
x | default(1), x | default(1, true), undefinedname | default, undefinedname | default(none), e | d('z', true), 0 | default(5, boolean=true), d.zz | default(d.b), undefinedname | default(default_value=3), [] | default([1], true)
'%s-%s' | format(1, 'a'), '%(a)s' | format(a=5), '%d' | format(3.9), '%s' | format(none), '%%' | format, '%5s|%-5s|' | format('a', 'b'), 'x' | format, '%s' | format(l), '%r' | format(s)
d | tojson(true), d | tojson(false, 2), l | tojson(indent=0), l | tojson(indent=-1), l | tojson(indent=true), l | tojson(indent='--'), d | tojson(separators=(',', ':')), d | tojson(separators=',:'), d | tojson(separators=[' ; ', ' = '], indent=1), {'b': 1, 'a': {'d': 1, 'c': 2}} | tojson(sort_keys=true), {2: 1, 1: 2} | tojson(sort_keys=true), {true: 1, none: 2, 1.5: 3, 7: 4} | tojson, '\u007f\u0080\ufeff' | tojson(ensure_ascii=true), '😀' | tojson(ensure_ascii=true), '</script>&\'' | tojson, [('inf' ~ e) | float, ('-inf' ~ e) | float] | tojson, 1e-7 | tojson, -0.0 | tojson, [[]] | tojson(indent=2), {'a': {}} | tojson(indent=2), 'a' | safe | tojson, (1, [2, (3,)]) | tojson, big | tojson, {'a\n': '\t'} | tojson, [d.keys() | list] | tojson, (m | groupby('r')) | tojson
# Text and its methods.
'ǆ' | upper, 'ǆ' | title, 'ǆ'.title(), 'ŉ' | upper, 'ß' | capitalize, 'ΑΣ Σ' | lower, 'ΑΣ'.lower(), 'ΣΑ'.title(), 'ΑΣ'.capitalize(), 'İ'.lower(), 'ﬁx'.upper(), 'ﬁx' | title, 'ﬁ'.capitalize(), 'Straße'.swapcase(), 'ΑΣ'.swapcase(), "they're bill's" | title, "they're bill's".title(), '1a2b'.title(), 'a1b' | title, 'ab\u0300c'.title()
'²'.isdigit(), '²'.isdecimal(), '½'.isnumeric(), '一'.isnumeric(), '٣'.isdecimal(), 'Ⅷ'.isnumeric(), 'Ⅷ'.isupper(), 'ª'.islower(), 'a1'.isidentifier(), '1a'.isidentifier(), ''.isidentifier(), 'é_'.isidentifier(), 'a b'.isprintable(), 'a\n'.isprintable(), ''.isprintable(), '\u00a0'.isprintable(), 'é'.isascii(), ''.isascii(), 'Ab Cd'.istitle(), 'AB'.istitle(), 'A1B'.istitle(), ''.istitle()
'a\tb\tc'.expandtabs(), 'a\tb'.expandtabs(4), 'a\n\tb'.expandtabs(4), '\t'.expandtabs(0), 'ab\tc'.expandtabs(tabsize=3), '😀\tb'.expandtabs(4)
'a,b,c'.split(',', 1), 'a,b,c'.split(sep=','), 'a b c'.split(maxsplit=1), ' a  b '.split(' '), 'a,b,c'.rsplit(',', maxsplit=1), ' a b '.rsplit(), 'abab'.split('ab'), 'a\u2003b'.split(), 'a,b'.split(',', 0), ' a b'.split(none, 0), 'a,b,c'.split(',', -1), 'añb'.split('ñ'), 'a\x1cb\u2028c'.splitlines(), ''.splitlines(), '\n\n'.splitlines(true), 'a\r\rb'.splitlines()
'abcabc'.find('c', -2), 'abcabc'.rfind('a', 0, 3), 'abc'.find('', 3), 'abc'.find('', 4), 'abc'.count(''), 'abc'.count('', 4), 'abc'.index('b', 1), 'añbñ'.rindex('ñ'), 'abc'.startswith('b', 1), 'abc'.endswith('b', 0, 2), 'abc'.startswith(''), 'abc'.startswith('', 4), 'abc'.startswith(()), 'abc'.startswith(('x', 'a')), 'abc'.find('c', none, none), 'aaa'.count('aa'), 'abc'.find('a', 1, 0)
'-5'.zfill(5), '+5'.zfill(1), 'é'.zfill(3), 'ab'.ljust(5, '*') ~ '|', 'ab'.rjust(5, 'é'), 'ab'.center(5, '*'), 'ab'.center(6, '*'), 'abc'.center(6, '*'), 'a'.partition('a'), 'aba'.rpartition('b'), 'xxa'.removeprefix('x'), 'a'.removesuffix(''), 'ab'.join('xyz'), '-'.join(d), ''.join([]), '-'.join(('a',))
'{}'.format('a'), '{0}{1}{0}'.format(1, 2), '{a[b]}{a.k}'.format(a={'b': 1, 'k': 2}), '{0.b}'.format(d), '{0[a][k][1]}'.format(d), '{!r}'.format('a'), '{!a}'.format('é'), '{!s:>5}'.format(1), '{:>5}|{:<5}|{:^5}|'.format('a', 'b', 'c'), '{:*^7}'.format('x'), '{:05d}'.format(-3), '{:+}'.format(3), '{: }'.format(3), '{:x}{:X}{:o}{:b}'.format(255, 255, 8, 5), '{:#x}{:#o}{:#b}'.format(255, 8, 5), '{:,}'.format(1234567), '{:_}'.format(1234567), '{:_x}'.format(1234567), '{:,.2f}'.format(1234567.891), '{:010,.1f}'.format(1234.5), '{:.3}'.format('abcdef'), '{:.3}'.format(3.14159), '{:e}'.format(12345.678), '{:.2E}'.format(12345.678), '{:g}'.format(1234567.0), '{:g}'.format(0.00001), '{:G}'.format(1e-10), '{:%}'.format(0.256), '{:.1%}'.format(0.256), '{:c}'.format(233), '{:n}'.format(5), '{:{w}.{p}f}'.format(3.14159, w=8, p=2), '{{}}{}'.format(1), '{:d}'.format(true), '{:5}|'.format(true), '{}'.format(true), '{:>4}'.format(none | string), '{:=+6}'.format(3), '{:z.1f}'.format(-0.01), '{:08}'.format(-1.5), '{:<08}'.format(5), '{:.0f}'.format(2.5), '{:#.0f}'.format(2.5), '{:#g}'.format(1.0), '{:.10g}'.format(0.1), '{:f}'.format(('inf' ~ e) | float), '{:F}'.format(('inf' ~ e) | float), '{:s}'.format('a'), '{:.2}'.format(1e20), '{:}'.format(l), '{k}'.format_map({'k': 5}), '{0!r:>6}'.format('a')
'%5.1f|%-8s|%+d|% d|%05d' % (2.25, 'a', 3, 4, -5), '%x %X %o %#x %#o' % (255, 255, 8, 255, 8), '%e %E %g %G' % (1234.5, 1234.5, 1e-10, 1e20), '%c%c' % ('a', 98), '%r %a' % ('é', 'é'), '%(a)s %(b)d' % {'a': 1, 'b': 2}, '%*d|%-*d|' % (5, 1, 5, 2), '%.*f' % (2, 3.14159), '%.2s' % 'abc', '%5s' % 'é', '%d' % 3.99, '%i %u' % (1, 2), '%s' % [1], '%s %s' % ('a', none), '%%' % (), '%s' % {'a': 1}, 'a' % {}, 'a' % [], '%.3d' % 5, '%ld' % 5, '%+.1e' % 0, '%g' % 100000, '%g' % 1000000, '%#g' % 1, '%.0f' % 0.5, '%s' % (), '%(a)s' % d, '%d' % true, '%s' % 1e16, '%08.3f' % -3.14159, '%-05d|' % 3, '%F' % (('inf' ~ e) | float)
# Numbers.
big + 1, big * big, big - big, -big, big // 7, big % 7, big / 3, big == big + 0, big > 1e20, big < (('inf' ~ e) | float), 2 ** 100, 2 ** 64 - 1, 9223372036854775807 + 1, -9223372036854775808 - 1, -9223372036854775808 // -1, (2 ** 63) % 10, 3 ** 50, (-2) ** 3, 2 ** 0.5, 2 ** -2, 0 ** 0, 1e308 * 10, 7 // 0.3, -7 // 2.0, -7 % 3, 7 % -3, -7.5 % -2, 5.0 // 0.1, 1e16 + 1, 0.1 + 0.2, 1 / 3, 100 / 10, 1e22, 1e23, 123456789.123456789, 5e-324, 1.7976931348623157e308, 9007199254740993 == 9007199254740992.0, 2 ** 53 == 2.0 ** 53, true + true, true * 'ab', -true, +true, not 0, 1 == 1.0 == true, {1: 'a', true: 'b', 1.0: 'c'}, {2 ** 70: 1}[2 ** 70], big in [big], big is number, big is integer, 0x_ff, 0b1_0, 0o7_7, 1_0.5_0, 00, 1.5e-3, 1E5
(5).bit_length(), (2.0).is_integer(), (2.5).is_integer(), n.real, f.real, n.imag, f.imag, true.real, big.bit_length()
# Lists, ranges, views, tuples.
range(5), range(1, 5), range(0, 10, 3), range(5)[1], range(5)[-1], range(5)[1:3], range(10)[::-2], range(5) == range(0, 5), range(0) == range(1, 1), range(5) is sequence, range(5) is mapping, 3 in range(5), 2.0 in range(5), 'a' in range(5), range(5).index(3), range(5).count(9), range(3).start, range(3) | length, range(5) | list | sum, range(3) | join, range(10, 0, -3) | list, range(3) ~ ''
(1, 2) + (3,), (1,) * 2, (1, 2)[::-1], (1, 2) < (1, 3), () == (), (1, 2).count(1), (1, [2]) == (1, [2]), [1, 2] == (1, 2), [[1, 2], 3] < [[1, 3]], [none] == [none], [none] < [none], [1, none] < [2, none], [1] * 0, 2 * [1], [1, 2, 3].index(3, 1), l.copy() is sameas l, l is sameas l, [] + []
d.keys() == {'C': 1, 'a': 2, 'b': 3, 'items': 4}.keys(), d.keys() < d.keys(), d.keys() <= d.keys(), d.items() == d.items(), 'b' in d.keys(), ('b', 1) in d.items(), 5 in d.values(), d.keys() | first, d.values() | list | length, d.keys() ~ '', {}.keys(), {}.items(), dict(d, b=2).b, dict(pairs), dict(), dict([['a', 1]], a=2), dict.fromkeys('ab'), dict.fromkeys(l, 0), {}.fromkeys([1], 2), d.update is defined, d['update'] is defined, {'update': 1}.update is defined, {'update': 1}['update'], {'__class__': 1}.__class__ is defined, {'_x': 1}._x, d.__class__ is defined, l.append is defined, l.sort is defined, s.__len__ is defined, undefinedname.__class__ is defined, l.index(1) if false else 3
{'a': 1}['a'], {1: 'x'}[1.0], {(1, 2): 'x'}[1, 2], {(1, 2): 'x'}[(1, 2)], {none: 1}[none], {true: 1}[1], d[undefinedname] is undefined, d[[]] is undefined, l[undefinedname] is undefined, l['0'] is undefined, l[true], s[true], s[99] is undefined, l[big] is undefined, l[big:], l[:-big], s[:big], l[none:2], l[-99:1], l[::2], s[::-2], l[5:1], s[none:none:none]
# Tests.
none is none, undefinedname is none, undefinedname is undefined, 1 is number, true is number, '1' is number, 2.0 is integer, true is integer, 2 is float, true is boolean, 0 is false, false is false, 'a' is string, ('a' | safe) is string, ('a' | safe) is escaped, 'a' is escaped, d is mapping, l is mapping, d.items() is mapping, d is iterable, 5 is iterable, none is iterable, (l | map('abs')) is iterable, (l | map('abs')) is sequence, d.keys() is sequence, () is sequence, none is sequence, range is callable, undefinedname is callable, d.items is callable, namespace() is iterable, 'length' is filter, 'nope' is filter, 5 is filter, 'odd' is test, 'nope' is test, '==' is test, none is test
3 is odd, 3.0 is odd, 2.5 is even, -3 is odd, big is even, 6 is divisibleby 3, 6 is divisibleby(4), 7.5 is divisibleby 2.5, 'ABC' is upper, 'abc' is lower, 'a1' is lower, '1' is lower, 5 is upper, 'ÀB' is upper, 1 is in [1], 'a' is in 'abc', 1 is not in [1], 1 is eq 1.0, 1 is ne 2, 1 is lt 2, 2 is ge 2, 'a' is gt 'b', 1 is sameas true, none is sameas none, l is sameas l, [] is sameas [], 'a' is sameas 'a', 1 is lessthan 2, 2 is greaterthan(1), 1 is equalto 1, not 1 is odd, 1 is not even, 1 is odd and 2 is even, 1 is odd or nope, x is none and 1, 1 is defined == true
# Operators.
1 if true, (1 if false) is undefined, (1 if false) ~ 'a', 1 if 0 else 2 if 0 else 3, 'a' if s else 'b', not (1 if 0 else 0), 1 ~ 2 ~ 3, 1 + 2 ~ 3, 2 * 3 ~ 'a', 'a' ~ none ~ true ~ 1.0 ~ [1], 1 - -1, - 2 ** 2, -2 ** 2, 2 ** 3 ** 2, 10 - 5 - 2, 2 + 3 * 4 // 5 % 6, 1 < 2 == true, 1 == 1 != 2, 3 > 2 > 1, 1 in [1] in [[1]], not 1 in [2], 1 not in [2] and 1, 1 or 1 / 0, 0 and 1 / 0, none or 'x', 'a' 'b' "c", ('a') ('b') if false else 1, [1, 2][0] + 1, {'a': 1}.a + 1, s[0].upper().lower()[0], (1, 2)[0], 'x'.upper() | lower ~ 'Y', -1 | abs, (-1) | abs, 'a,b'.split(',')[1] | upper, [] or {} or '' or 0, ('<b>' | safe) + '<i>', '<i>' + ('<b>' | safe), ('<b>' | safe) * 2, ('%s' | safe) % '<b>', ('%s' | safe) % ('<b>' | safe), ('{}' | safe).format('<b>'), ('-' | safe).join(['<', '>' | safe]), ('<b>' | safe)[0] + '<', ('<' | safe).replace('<', '<<'), [('<' | safe)], ('<b>' | safe).upper() + '<', ('a<' | e) ~ '<', ('<b>' | safe) | upper + '<' if false else 1, ('a b' | safe).split()[0] + '<', ('<' | safe) == '<', {'<': 1}['<' | safe]
""".strip().splitlines()

EXPRESSIONS = [line for line in EXPRESSIONS if not line.startswith("#")]

FAILING = """
1 / 0 ;; 1 // 0 ;; 1 % 0 ;; 'a' + 1 ;; none + 'a' ;; 'a' < 1 ;; undefinedname + 'a' ;; undefinedname.a ;; undefinedname['a'] ;; undefinedname() ;; n() ;; s.nomethod()
x | length ;; n | list ;; 1 in 2 ;; 'a' in none ;; l.append(1) ;; d.update({}) ;; d.pop('b') ;; l | nofilter ;; l is notest ;; [] | join(1, 2, 3) ;; range(0, 1, 0) ;; {[]: 1}
x.a.b ;; d.zz.a ;; 'a'.join([1]) ;; 'a'.split('') ;; 'x'.index('y') ;; s.startswith(1) ;; l[:] + (1,) ;; d + d ;; -s ;; undefinedname | tojson ;; (l | map('string')) | tojson ;; (l | map('string')) | length
d.items() | tojson ;; d.items()[0].x ;; '{}'.format() ;; '%d' % 'a' ;; '%s %s' % 1 ;; raise_exception('no: ' ~ n) ;; raise_exception(x) ;; dict(1) ;; 'a' * 'b' ;; [1] - [1] ;; l | sort(attribute='zz.y') ;; [1, 'a'] | sort ;; [{}] | unique | list
d | attr() ;; l | batch ;; l | slice(0) | list ;; l | batch('a', 0) | list ;; 5 | batch(2) | list ;; 'ab' | center('x') ;; 'x' | filesizeformat ;; none | filesizeformat ;; m | groupby ;; m | groupby('zz') | length == 1 ;; [1, 'a'] | groupby(0) ;; {'a b': 1} | xmlattr ;; {'a>': 1} | xmlattr ;; {1: 1} | xmlattr ;; l | xmlattr ;; s | truncate(2) ;; s | truncate(9, leeway=-1) ;; 5 | truncate ;; s | wordwrap(0) ;; 5 | wordwrap ;; [1] | urlencode ;; [[1, 2, 3]] | urlencode ;; s | round ;; 2.5 | round(0, 'up') ;; 1e400 | int ;; undefinedname | int ;; undefinedname | float ;; undefinedname | abs ;; s | abs
5 | indent ;; none | indent ;; undefinedname | indent ;; l | indent ;; l | map | list ;; l | map('nope') | list ;; l | map(attribute='a', foo=1) | list ;; l | map(5) | list ;; l | select('nope') | list ;; m | selectattr | list ;; [1, 'a'] | max ;; [none, 1] | sort ;; l | sort(attribute='a') | first == 9 ;; l | sort('x') ;; l | dictsort ;; d | dictsort(by='x') ;; [[], {}] | unique | list ;; ['a'] | sum ;; ['a'] | sum(start='') ;; (l | map('string')) | last ;; 5 | first ;; 5 | reverse ;; 5 | items | list ;; 'a' | replace('a') ;; 'a' | replace('a', 'b', 'c') ;; 'a' | trim(5) ;; '%d' | format('a') ;; '%s' | format(1, a=2) ;; '%(a)s' | format(1)
d | tojson(separators=(1, 2)) ;; d | tojson(separators='abc') ;; d | tojson(indent=[]) ;; {(1, 2): 1} | tojson ;; range(3) | tojson ;; {1: 1, 'a': 2} | tojson(sort_keys=true) ;; l | tojson(foo=1) ;; [undefinedname] | tojson ;; namespace() | tojson
'a'.nope() ;; 'a'.split(5) ;; 'a'.split(sep='') ;; 'a'.center() ;; 'a'.center(5, 'ab') ;; 'a'.zfill('x') ;; 'a'.zfill(5, '0') ;; 'a'.find() ;; 'a'.find(5) ;; 'a'.startswith([]) ;; 'a'.startswith(5) ;; 'a'.replace('a') ;; 'a'.replace('a', 'b', count=1) ;; 'a'.strip(chars='a') ;; 'a'.join(5) ;; 'a'.partition('') ;; 'a'.upper(1) ;; 'a'.removeprefix() ;; 'abc'.index('x') ;; 'abc'.rindex('a', 1)
'{'.format() ;; '}'.format() ;; '{}{0}'.format(1) ;; '{0}{}'.format(1) ;; '{a}'.format(1) ;; '{!x}'.format(1) ;; '{:d}'.format('a') ;; '{:s}'.format(1) ;; '{:.2d}'.format(1) ;; '{:5}'.format([]) ;; '{:5}'.format(none) ;; '{:q}'.format(1) ;; '{:,x}'.format(1) ;; '{:=5}'.format('a') ;; '{:+}'.format('a') ;; '{:d}'.format(1.5) ;; '{0.zz.y}'.format(d) ;; '{0[zz][y]}'.format(d) ;; '{a.b.}'.format(a=1) ;; '{:c}'.format(-1) ;; '{0[]}'.format(d) ;; '{k}'.format_map(5) ;; '{:{:{}}}'.format(1, 2, 3)
'%' % 1 ;; '%q' % 1 ;; '%d %d' % (1,) ;; '%d' % (1, 2) ;; '%c' % 'ab' ;; '%x' % 1.5 ;; '%(a)s' % 1 ;; '%(zz)s' % d ;; '%*d' % ('a', 1) ;; '%s' % () ;; 'a' % 1 ;; '%d' % none ;; '%f' % 'a' ;; '%c' % -1
2.0 ** 10000 ;; 0 ** -1 ;; 0.0 ** -1.5 ;; (2 ** 2000) / 1.0 + 0.0 ;; 2 ** 5000 * 1.0 ;; 'a' * 2.5 ;; [1] * 'a' ;; {} + {} ;; {} < {} ;; none < none ;; [1] < (1,) ;; [none, 1] < [none, 'a'] ;; 'a' in 5 ;; [] in {} ;; {}[[]] + 1 ;; {[1]: 2} ;; {{}: 1} ;; ([1],) in {} ;; l[::0] ;; s[::0] ;; l['a':] ;; n[1:] ;; d[1:] ;; 5() ;; 'a'() ;; none.x.y ;; n.zz.y ;; -none ;; -'a' ;; +[] ;; not undefinedname.x
range() ;; range(1, 2, 3, 4) ;; range('a') ;; range(1.5) ;; range(stop=5) ;; dict(5) ;; dict('ab') ;; dict([[1]]) ;; dict(1, 2) ;; dict(undefinedname) ;; dict.fromkeys(5) ;; dict.fromkeys([[]]) ;; namespace(5) ;; namespace(_x=1) ;; namespace({'_x': 1}) ;; namespace(1, 2) ;; cycler() ;; joiner(1, 2) ;; raise_exception() ;; strftime_now() ;; strftime_now(5) ;; l.pop() ;; l.sort() ;; l.clear() ;; d.setdefault('x', 1) ;; d.popitem() ;; d.clear() ;; (1,).append(2) ;; s.__class__.x ;; s.__class__() ;; d.__class__.__mro__ ;; undefinedname.__class__.x ;; ''.__class__.__mro__
3 is odd(1) ;; 3 is nope ;; 'a' is even ;; none is odd ;; 1 is divisibleby ;; 1 is divisibleby('a') ;; 1 is in 5 ;; 1 is lt 'a' ;; [] is filter ;; 1 is eq ;; 1 is eq(1, 2) ;; 1 is sameas ;; l | nofilter if false else 1 | nofilter ;; f(**5) ;; range(*5) ;; dict(**{1: 2}) ;; dict(a=1, **{'a': 2}) ;; dict(a=1, a=2) ;; 0123 ;; 1__0 ;; 0x ;; 1.2.3 ;; '\\x4' ;; '\\u12' ;; a b ;; 1 +* 2 ;; [1, 2 ;; (1, ;; {1} ;; {1: } ;; l[ ;; l[] ;; l[1:2:3:4] ;; l[1 2] ;; f(,) ;; f(a=) ;; f(*a, b) ;; f(**a, b) ;; f(a=1, *b) ;; .a ;; a..b ;; a.1.5 ;; true() ;; if ;; a if ;; a if b else ;; not ;; a is ;; a is not ;; a | ;; a | 5 ;; ! ;; a ? b ;; a && b ;; $a
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
    # Loops.
    "{% for i in l %}{% continue %}{{ i }}{% else %}E{% endfor %}", "{% for i in l %}{% break %}{% else %}E{% endfor %}", "{% for i in l %}{% if i == 1 %}{% break %}{% endif %}{{ i }}{% else %}E{% endfor %}", "{% for i in l if i > 9 %}x{% else %}E{{ loop is defined }}{% endfor %}",
    "{% for i in l %}{% for j in [] %}{% else %}{% if loop.first %}{% continue %}{% endif %}{{ loop.index }}{% endfor %}{{ i }}{% endfor %}", "{% for i in l if loop is defined %}x{% endfor %}", "{% set ns = namespace(stop=false) %}{% for i in l if not ns.stop %}{{ i }}{% set ns.stop = i == 1 %}{% endfor %}",
    "{% set g = l | map('string') %}{{ g | first }}{{ g | join }}", "{% set g = l | select %}{% for i in g %}{{ loop.index }}/{{ loop.length }}{{ i }}{{ loop.revindex0 }} {% endfor %}", "{% set g = l | map('abs') %}{% for i in g %}{{ i }}{{ loop.nextitem }}{{ g | list }}|{% endfor %}", "{% set g = l | map('nofilter') %}ok", "{% set g = l | map('nofilter') %}{{ g | list }}",
    "{% for k, v in d | items %}{{ k }}{{ loop.last }}{% endfor %}{% for k in d | dictsort %}{{ k[0] }}{% endfor %}{% for a, b in pairs %}{{ a }}{{ b }}{% endfor %}", "{% for a, b in l %}{% endfor %}", "{% for a, in [[1]] %}{{ a }}{% endfor %}", "{% for i in range(3) recursive %}{{ i }}{{ loop.depth0 }}{% endfor %}{% for i in l %}{{ loop([1]) }}{% endfor %}",
    "{% for i in [[1, [2, 3]], 4] recursive %}{% if i is number %}{{ i }}@{{ loop.depth }}{{ loop.index }}{% else %}[{{ loop(i) }}]{% endif %}{% else %}none{% endfor %}", "{% for i in l %}{% set loop = 1 %}{% endfor %}", "{% for loop in l %}{% endfor %}", "{% for i in l %}{{ loop }}{% endfor %}", "{% for i in l %}{{ loop.zz is defined }}{{ loop['index'] }}{{ loop | length }}{% endfor %}", "{% for i in l: %}{{ i }}{% endfor %}{% if t: %}x{% else: %}y{% endif %}",
    "{% for i in 1, 2, 3 %}{{ i }}{% endfor %}{% for i in (1, 2), %}{{ i }}{% endfor %}", "{% for i in l %}{% for i in 'ab' %}{{ i }}{% endfor %}{{ i }}{% endfor %}{{ i is defined }}", "{% for i in l %}{{ loop.cycle() }}{% endfor %}", "{% for i in [1, 1, 2] %}{% if loop.changed(i) %}{{ i }}{% endif %}{% endfor %}", "{% for s in s %}{{ s }}{% endfor %}{{ s }}", "{% for i in x or [] %}{% else %}e{% endfor %}",
    # Sets, scopes, blocks.
    "{% set a = 1 %}{% if t %}{% set a = 2 %}{% endif %}{{ a }}{% for i in l %}{% set a = 3 %}{% endfor %}{{ a }}{% with %}{% set a = 4 %}{% endwith %}{{ a }}{% set b %}{% set a = 5 %}{% endset %}{{ a }}{% filter upper %}{% set a = 6 %}{% endfilter %}{{ a }}", "{% set a = a %}{{ a is defined }}{% set b = b | default(1) %}{{ b }}", "{% set ns = namespace(d, x=1) %}{{ ns.x }}{{ ns.b }}{{ ns }}", "{% set ns = namespace() %}{% set ns.a, ns.b = 1, 2 %}{{ ns.a }}{{ ns['b'] }}{{ ns.zz is defined }}",
    "{% set ns = namespace(a=1) %}{% set ns.a %}x{{ n }}{% endset %}{{ ns.a }}{% set ns.a | upper %}y{% endset %}{{ ns.a }}", "{% set d.b = 1 %}", "{% set undefinedname.b = 1 %}", "{% set ns = namespace() %}{% set ns.a.b = 1 %}", "{% set true = 1 %}", "{% set a.b.c %}{% endset %}", "{% set (a, b), c = (1, 2), 3 %}{{ a }}{{ b }}{{ c }}", "{% set a, b = 1 %}", "{% set a, b = 'xy' %}{{ a }}{{ b }}", "{% set a = 1, 2 %}{{ a }}", "{% set a %}{% endset %}[{{ a }}]", "{% set [a] = 1 %}", "{% set a == 1 %}", "{% set a | nofilter %}{% endset %}", "{% set a | length %}abc{% endset %}{{ a + 1 }}",
    "{% for i in l %}{% set a %}{% break %}{% endset %}{{ i }}{% endfor %}{{ a is defined }}", "{% for i in l %}{% filter upper %}x{% continue %}{% endfilter %}{{ i }}{% endfor %}", "{% for i in l %}{% with %}{{ i }}{% break %}{% endwith %}{% endfor %}", "{% for i in l %}{% generation %}{% break %}{% endgeneration %}{% endfor %}", "{% for i in l %}{% macro f() %}{% break %}{% endmacro %}{% endfor %}", "{% continue %}",
    "{% with a = n, b = a %}{{ a }}{{ b is defined }}{% endwith %}{% with a = 1 %}{% with b = a %}{{ a }}{{ b }}{% endwith %}{% endwith %}{% with (a, b) = (1, 2) %}{{ a }}{{ b }}{% endwith %}", "{% with a = 1 b = 2 %}{% endwith %}", "{% with a %}{% endwith %}", "{% filter upper | trim %} a {% endfilter %}{% filter replace('a', 'b') %}a{% endfilter %}{% filter indent(2) %}a\nb{% endfilter %}", "{% filter length %}abc{% endfilter %}", "{% filter %}{% endfilter %}", "{% filter nofilter %}{% endfilter %}", "{% print 1, 'a', n + 1 %}{% print s %}{% print %}",
    # Macros and calls.
    "{% macro f(a, b='x', *c) %}{% endmacro %}", "{% macro f(a, a) %}{% endmacro %}", "{% macro f() %}{{ caller is defined }}{% endmacro %}{{ f() }}{% call f() %}{% endcall %}", "{% macro f(x) %}{{ caller(x) }}{% endmacro %}{% call(y) f(3) %}[{{ y }}]{% endcall %}", "{% macro f() %}{{ caller(1, b=2) }}{% endmacro %}{% call(a, b, c=3) f() %}{{ a }}{{ b }}{{ c }}{% endcall %}", "{% macro f() %}{{ caller(1) }}{% endmacro %}{% call f() %}{% endcall %}", "{% macro f(caller) %}{{ caller }}{% endmacro %}", "{% macro f(caller=1) %}{{ caller }}{% endmacro %}{{ f() }}{{ f(2) }}",
    "{% macro f(a, b) %}{{ f.name }}{{ f.arguments }}{{ f.catch_kwargs }}{{ f.catch_varargs }}{{ f.caller }}{{ f }}{% endmacro %}{{ f(1) }}{{ f }}", "{% macro f(a) %}{{ a }}{{ kwargs }}{{ varargs }}{% endmacro %}{{ f(1, 2, 3, b=4) }}{{ f(1, a=2) }}", "{% macro f(a=1) %}{{ a }}{% endmacro %}{{ f(*[5]) }}{{ f(**{'a': 6}) }}{{ f(none) }}{{ f(undefinedname) }}", "{% macro f(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ f(1) }}{{ f(b=2) }}", "{% macro f(a=b, b=2) %}[{{ a }}{{ b }}]{% endmacro %}{{ f() }}{{ f(b=3) }}", "{% set b = 9 %}{% macro f(a=b, b=2) %}[{{ a }}{{ b }}]{% endmacro %}{{ f() }}",
    "{% macro f() %}{% macro g() %}in{% endmacro %}{{ g() }}{% endmacro %}{{ f() }}{{ g is defined }}", "{% macro fact(n) %}{{ n * fact(n - 1) | int if n > 1 else 1 }}{% endmacro %}{{ fact(5) }}", "{% set k = 1 %}{% macro f() %}{{ k }}{% set k = 2 %}{{ k }}{% endmacro %}{{ f() }}{{ k }}", "{% macro f() %}<{% endmacro %}{{ f() | e }}{{ f() ~ '<' }}{{ f() is string }}", "{% for i in l %}{% macro f() %}{{ i }}{{ loop.index }}{% endmacro %}{{ f() }}{% endfor %}{{ f is defined }}", "{% macro a() %}A{{ b() }}{% endmacro %}{% macro b() %}B{% endmacro %}{{ a() }}", "{% call range(3) %}{% endcall %}", "{% call f %}{% endcall %}", "{% macro f %}{% endmacro %}", "{% macro f() %}{% endmacro f %}",
    "{% macro f(i) %}{{ i }}{% if i %}{{ f(i - 1) }}{% endif %}{% endmacro %}{% set r = f(3) %}{{ r | length }}", "{% macro f() %}{{ caller() if caller else 'no' }}{% endmacro %}{{ f() }}{% call f() %}yes{% endcall %}", "{% macro f(x) %}{% for i in x recursive %}{{ i if i is number else loop(i) }}{% endfor %}{% endmacro %}{{ f([1, [2, [3]]]) }}",
    # Generation blocks, loop controls, other tags.
    "a{% generation %}b{{ n }}{% endgeneration %}c", "a {%- generation -%} b {%- endgeneration -%} c", "{% for i in l %}{% generation %}{{ i }}{{ loop.index }}{% endgeneration %}{% endfor %}", "{% generation %}{{ caller is defined }}{{ kwargs }}{{ varargs }}{% endgeneration %}", "{% set a = 1 %}{% generation %}{{ a }}{% set a = 2 %}{{ a }}{% endgeneration %}{{ a }}", "{% generation x %}{% endgeneration %}", "{% generation %}", "{% macro f() %}{% generation %}x{% endgeneration %}{% endmacro %}{{ f() }}",
    "{% include %}", "{% block %}", "{% do x %}", "{% trans %}", "{% debug %}", "{% autoescape %}", "{% endblock %}", "{% elif t %}", "{% if t %}{% elif %}{% endif %}", "{% if t %}{% else %}{% else %}{% endif %}", "{% for i in l %}{% else %}{% else %}{% endfor %}", "{% if t %}{% endfor %}", "{% %}", "{%%}", "{{}}", "{#", "a{#", "{% raw %}", "{% raw -%}", "{% raw %} ", "{{", "{%", "{##}x", "{# {# #} x", "{% raw %}{% endraw", "{% raw %}a{%- endraw -%} b", "a {%- raw %} b {% endraw +%}\n c", "{% raw +%}x{% endraw %}", "{%raw%}{{{%endraw%}", "{% raw %}{% raw %}{% endraw %}", "{{ '{{' }}{{ '%}' }}{{ \"}}\" }}",
    "{% if undefinedname is defined and undefinedname | nofilter %}x{% endif %}ok", "{% if false %}{{ 1 | nofilter }}{% endif %}ok", "{{ 1 | nofilter if false }}ok", "{% for i in [] %}{{ i | nofilter }}{% endfor %}", "{% if false %}{% for i in [] %}{{ i | nofilter }}{% endfor %}{% endif %}", "{% if false %}{{ 1 is notest }}{% endif %}ok", "{% if false %}{{ 1 | a.b.c }}{{ 1 is a.b }}{% endif %}ok", "{{ 1 | list.x }}", "{{ 1 | list. }}", "{% macro f() %}{{ 1 | nofilter }}{% endmacro %}", "{{ 'x' if 1 else (2 | nofilter) }}", "{% if false %}{% set a | nofilter %}{% endset %}{% endif %}", "{{ x | nofilter | default('a') }}",
    "{% set c = cycler('a', 'b') %}{{ c.current }}{{ c.next() }}{{ c.current }}{{ c.pos }}{{ c.items }}{{ c.reset() }}{{ c.next() }}", "{% set j = joiner() %}[{{ j() }}{{ j() }}{{ j() }}]{{ j.used }}{{ j.sep }}", "{% set j = joiner('|') %}{% for i in l %}{{ j() }}{{ i }}{% endfor %}", "{{ strftime_now('%A %d') ~ strftime_now('%Y-%m-%dT%H:%M:%S') }}", "{{ raise_exception('a' ~ 1) if t }}", "{{ strftime_now('%a %A %b %B %c %C %d %D %e %E %F %f %g %G %h %H %i %I %j %k %l %m %M %N %n %p %P %q %Q %r %R %S %t %T %u %U %v %V %w %W %x %X %y %Y %z %Z %+ %%') }}",
    "{{ strftime_now('%-d %_d %0e %^a %#b %5d %-I %-j %Ey %Od %_m %-H:%-M %^B %3Y %_5d|%05e|%-y') }}", "{{ strftime_now('%') }}{{ strftime_now('a%') }}{{ strftime_now('%é') }}{{ strftime_now('%-') }}{{ strftime_now('') }}{{ strftime_now('é') }}", "{{ raise_exception({'a': 1}) }}", "{{ raise_exception(message='m') }}", "{% if not t %}{{ raise_exception('x') }}{% endif %}ok",
    # White space.
    "  {%+ if t %}x{% endif %}\n  {%- if t +%}\n y{% endif -%}\n z", "{{- n -}}\n{{ n }}\n\n", "a\n\n{%- set a = 1 %}\n\nb", " {{+ n }} x", "\t{# c -#}\n x", "x\n   {#- c #}  \ny", "{% if t %}  {% endif %}  {% if t %}\n{% endif %}\n", "x{% set a = 1 %}\n\ny", "\r\n{% if t %}\r\nx\r{% endif %}\ry\r\n", "a {% if t %} b {% endif %} c", "\n  {% if t %}\n    {{ n }}\n  {% endif %}\n", "\u00a0\u2003{% if t %}x{% endif %}", "\x0b{% if t %}x{% endif %}", "{{ 'a\nb' }}\n{{ 'a\\nb' }}",
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
