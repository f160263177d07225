package tokenizer

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
)

// The reference's expressions are Oniguruma's. regexp2 reads those of .NET,
// with the characters of Go's Unicode version. translate writes one as the
// other, and refuses what has no equal.
type translation struct {
	in    []rune
	at    int
	out   strings.Builder
	depth int
	fold  bool // letters of either case match
}

const maxGroups = 64 // nested

func translate(expr string) (string, error) {
	t := &translation{in: []rune(expr)}
	if err := t.alternatives(); err != nil {
		return "", fmt.Errorf("pattern %.80q: %w", expr, err)
	}
	if t.at < len(t.in) {
		return "", fmt.Errorf("pattern %.80q has ) without (: %w", expr, ErrInvalid)
	}
	return t.out.String(), nil
}

func (t *translation) refuse(what string) error {
	return fmt.Errorf("%s at character %d is not supported: %w", what, t.at, ErrUnsupported)
}

func (t *translation) peek() rune {
	if t.at < len(t.in) {
		return t.in[t.at]
	}
	return 0
}

// take steps over text if it comes next.
func (t *translation) take(text string) bool {
	r := []rune(text)
	if len(t.in)-t.at < len(r) || string(t.in[t.at:t.at+len(r)]) != text {
		return false
	}
	t.at += len(r)
	return true
}

func (t *translation) alternatives() error {
	for t.at < len(t.in) && t.peek() != ')' {
		if t.take("|") {
			t.out.WriteByte('|')
			continue
		}
		before := t.out.String()
		t.out.Reset()
		if err := t.atom(); err != nil {
			return err
		}
		atom := t.out.String()
		t.out.Reset()
		repeated, err := t.repeats(atom)
		if err != nil {
			return err
		}
		t.out.WriteString(before)
		t.out.WriteString(repeated)
	}
	return nil
}

// repeats writes what repeats an atom. A plus behind * + ? takes without giving
// back; behind braces it repeats once more.
func (t *translation) repeats(atom string) (string, error) {
	for {
		brace := false
		var q string
		switch c := t.peek(); {
		case c == '*' || c == '+' || c == '?':
			q = string(c)
			t.at++
		case c == '{':
			end := strings.IndexRune(string(t.in[t.at:]), '}')
			if end < 0 {
				return "", t.refuse("{ without }")
			}
			q = string(t.in[t.at : t.at+end+1])
			if !bracesOK(q) {
				return "", t.refuse("repetition " + q)
			}
			q = strings.Replace(q, "{,", "{0,", 1)
			t.at += end + 1
			brace = true
		default:
			return atom, nil
		}
		if atom == "" {
			return "", t.refuse("repetition of nothing")
		}
		switch {
		case brace:
			atom = "(?:" + atom + q + ")"
		case t.take("+"):
			atom = "(?>" + atom + q + ")"
		case t.take("?"):
			atom = "(?:" + atom + q + "?)"
		default:
			atom = "(?:" + atom + q + ")"
		}
	}
}

// bracesOK accepts {2}, {2,}, {,2} and {2,5}, up to 1,000.
func bracesOK(q string) bool {
	low, high, ranged := strings.Cut(q[1:len(q)-1], ",")
	for _, n := range []string{low, high} {
		if n == "" {
			continue
		}
		if v, err := strconv.ParseUint(n, 10, 16); err != nil || v > 1000 {
			return false
		}
	}
	return low != "" || ranged && high != ""
}

func (t *translation) atom() error {
	switch c := t.peek(); c {
	case '(':
		return t.group()
	case '[':
		return t.set()
	case '\\':
		return t.escape()
	case '.', '^', '$':
		t.at++
		t.out.WriteRune(c)
		return nil
	case '*', '+', '?':
		return t.refuse("repetition of nothing")
	default:
		t.at++
		t.literal(c)
		return nil
	}
}

// literal writes a character that stands for itself, or for both its cases.
func (t *translation) literal(c rune) {
	if !t.fold || unicode.SimpleFold(c) == c {
		t.out.WriteString(quote(c))
		return
	}
	t.out.WriteByte('[')
	t.orbit(c)
	t.out.WriteByte(']')
}

// orbit writes a character and its other cases, as members of a set.
func (t *translation) orbit(c rune) {
	t.out.WriteString(quote(c))
	if t.fold {
		for r := unicode.SimpleFold(c); r != c; r = unicode.SimpleFold(r) {
			t.out.WriteString(quote(r))
		}
	}
}

func quote(c rune) string {
	if c < 0x80 && !unicode.IsLetter(c) && !unicode.IsDigit(c) {
		return fmt.Sprintf(`\x%02x`, c)
	}
	return string(c)
}

func (t *translation) group() error {
	if t.depth++; t.depth > maxGroups {
		return t.refuse("nesting this deep")
	}
	fold := t.fold
	t.at++ // (
	switch {
	case t.take("?:"):
		t.out.WriteString("(?:")
	case t.take("?="):
		t.out.WriteString("(?=")
	case t.take("?!"):
		t.out.WriteString("(?!")
	case t.take("?<="):
		t.out.WriteString("(?<=")
	case t.take("?<!"):
		t.out.WriteString("(?<!")
	case t.take("?>"):
		t.out.WriteString("(?>")
	case t.take("?i:"):
		t.fold = true
		t.out.WriteString("(?:")
	case t.take("?i)"): // to the end of the group around
		t.fold = true
		t.depth--
		return t.rest()
	case t.take("?m:"):
		t.out.WriteString("(?s:")
	case t.peek() == '?':
		return t.refuse("group (?" + string(t.in[t.at+1:min(t.at+2, len(t.in))]))
	default:
		t.out.WriteString("(?:")
	}
	if err := t.alternatives(); err != nil {
		return err
	}
	if !t.take(")") {
		return fmt.Errorf("( without ): %w", ErrInvalid)
	}
	t.out.WriteByte(')')
	t.depth--
	t.fold = fold
	return nil
}

// rest is what follows (?i) in its group.
func (t *translation) rest() error {
	t.out.WriteString("(?:")
	err := t.alternatives()
	t.out.WriteByte(')')
	return err
}

func (t *translation) escape() error {
	if t.at+1 == len(t.in) {
		return fmt.Errorf("\\ at the end: %w", ErrInvalid)
	}
	switch c := t.in[t.at+1]; c {
	case 'b', 'B', 'A', 'z', 'Z':
		t.at += 2
		t.out.WriteString(anchors()[c])
		return nil
	}
	members, negated, single, err := t.member()
	if members == setWordMembers() {
		members = wordMembers()
	}
	switch {
	case err != nil:
		return err
	case single >= 0:
		t.literal(single)
	case negated:
		t.out.WriteString("[^" + members + "]")
	default:
		t.out.WriteString("[" + members + "]")
	}
	return nil
}

// anchors are written out where the word characters of .NET are others.
func anchors() map[rune]string {
	w := "[" + wordMembers() + "]"
	return map[rune]string{
		'b': "(?:(?<=" + w + ")(?!" + w + ")|(?<!" + w + ")(?=" + w + "))",
		'B': "(?:(?<=" + w + ")(?=" + w + ")|(?<!" + w + ")(?!" + w + "))",
		'A': `\A`, 'z': `\z`, 'Z': `\Z`,
	}
}

// member reads an escape that stands for one character, given as single, or for
// members of a set.
func (t *translation) member() (members string, negated bool, single rune, err error) {
	c := t.in[t.at+1]
	t.at += 2
	switch c {
	case 'n', 'r', 't', 'f', 'v', 'a', 'e':
		return "", false, map[rune]rune{'n': '\n', 'r': '\r', 't': '\t', 'f': '\f', 'v': '\v', 'a': '\a', 'e': 0x1b}[c], nil
	case 's', 'S':
		return `\s`, c == 'S', -1, nil
	case 'd', 'D':
		return `\p{Nd}` + lateMembers(number), c == 'D', -1, nil
	case 'w', 'W':
		return setWordMembers(), c == 'W', -1, nil
	case 'h', 'H':
		return "0-9a-fA-F", c == 'H', -1, nil
	case 'x', 'u':
		single, err = t.code(c)
		return "", false, single, err
	case 'p', 'P':
		members, negated, err = t.property()
		return members, negated != (c == 'P'), -1, err
	}
	if c < 0x80 && (unicode.IsLetter(c) || unicode.IsDigit(c)) {
		t.at -= 2
		return "", false, -1, t.refuse(`\` + string(c))
	}
	return "", false, c, nil
}

// code reads \x41, \x{1f600} and \u0041.
func (t *translation) code(kind rune) (rune, error) {
	digits := map[rune]int{'x': 2, 'u': 4}[kind]
	text := string(t.in[t.at:min(t.at+digits, len(t.in))])
	if kind == 'x' && t.peek() == '{' {
		end := strings.IndexRune(string(t.in[t.at:]), '}')
		if end < 0 {
			return -1, t.refuse(`\x{ without }`)
		}
		text = string(t.in[t.at+1 : t.at+end])
		t.at += 2
	}
	n, err := strconv.ParseUint(text, 16, 32)
	if err != nil || n > unicode.MaxRune || 0xd800 <= n && n < 0xe000 {
		return -1, t.refuse(`\` + string(kind) + text)
	}
	t.at += len(text)
	return rune(n), nil
}

// property reads {L} or {^L} behind \p.
func (t *translation) property() (members string, negated bool, err error) {
	end := strings.IndexRune(string(t.in[t.at:]), '}')
	if t.peek() != '{' || end < 0 {
		return "", false, t.refuse(`\p without {name}`)
	}
	name := string(t.in[t.at+1 : t.at+end])
	t.at += end + 1
	name, negated = strings.CutPrefix(name, "^")
	late := map[string]category{
		"L": letter, "Lu": upper, "Ll": lower, "Lt": title, "Lm": modifier, "Lo": otherLetter,
		"M": mark, "N": number, "P": punctuation, "S": sign,
	}
	if bits, ok := late[name]; ok {
		return `\p{` + name + `}` + lateMembers(bits), negated, nil
	}
	switch name {
	case "Nd":
		return `\p{Nd}` + lateMembers(number), negated, nil
	case "Han":
		return `\p{Han}` + "\U0002ebf0-\U0002ee5d", negated, nil
	case "Hiragana", "Katakana", "Hangul", "Nl", "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Sc", "Zs":
		return `\p{` + name + `}`, negated, nil
	}
	return "", false, t.refuse(`property ` + name)
}

// lateMembers are the characters of a category that Go does not know yet.
func lateMembers(bits category) string {
	var b strings.Builder
	for k := category(1); k <= other; k <<= 1 {
		if k&bits == 0 {
			continue
		}
		t := ranges(since15()[k])
		for _, r := range t.R16 {
			b.WriteString(string(rune(r.Lo)) + "-" + string(rune(r.Hi)))
		}
		for _, r := range t.R32 {
			b.WriteString(string(rune(r.Lo)) + "-" + string(rune(r.Hi)))
		}
	}
	return b.String()
}

// wordMembers is \w of Oniguruma. Outside of sets it has the numbers of Latin-1
// that are no digits, too.
func wordMembers() string { return setWordMembers() + "²³¹¼-¾" }

func setWordMembers() string {
	return `\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}` + "Ⓐ-ⓩ🄰-🅉🅐-🅩🅰-🆉" + lateMembers(letter|mark|number)
}

// set writes [...]. A set in a set adds its members; of intersections, only
// that with what is not in a last set is known, which takes that away.
func (t *translation) set() error {
	t.at++ // [
	t.out.WriteByte('[')
	if t.take("^") {
		t.out.WriteByte('^')
	}
	err := t.members()
	t.out.WriteByte(']')
	return err
}

// members reads the members of a set and its end.
func (t *translation) members() error {
	if t.depth++; t.depth > maxGroups {
		return t.refuse("nesting this deep")
	}
	defer func() { t.depth-- }()
	for first := true; ; first = false {
		var err error
		switch {
		case t.at == len(t.in):
			return fmt.Errorf("[ without ]: %w", ErrInvalid)
		case t.peek() == ']' && !first:
			t.at++
			return nil
		case t.take("[:"):
			err = t.named()
		case t.take("&&[^"):
			t.out.WriteString("-[")
			err = t.members()
			t.out.WriteByte(']')
			if err == nil && !t.take("]") {
				err = t.refuse("an intersection that is not the last")
			}
			return err
		case t.take("[^"), t.take("&&"):
			return t.refuse("this kind of set in a set")
		case t.take("["):
			err = t.members()
		default:
			err = t.setMember()
		}
		if err != nil {
			return err
		}
	}
}

func (t *translation) named() error {
	for name, members := range map[string]string{
		"digit": `\p{Nd}` + lateMembers(number), "space": `\s`,
		"upper": `\p{Lu}` + lateMembers(upper), "lower": `\p{Ll}` + lateMembers(lower), "punct": `\p{P}\p{S}` + lateMembers(punctuation|sign),
	} {
		if t.take(name + ":]") {
			t.out.WriteString(members)
			return nil
		}
	}
	return t.refuse("this named set")
}

// setMember writes a character, a range or an escape in a set.
func (t *translation) setMember() error {
	low, err := t.setCharacter()
	if err != nil || low < 0 {
		return err
	}
	if t.peek() != '-' || t.at+1 == len(t.in) || t.in[t.at+1] == ']' {
		t.orbit(low)
		return nil
	}
	t.at++
	if t.peek() == '[' {
		return t.refuse("a set in a set")
	}
	high, err := t.setCharacter()
	if err != nil {
		return err
	}
	if high < low {
		return t.refuse("a range that ends before it begins")
	}
	t.out.WriteString(quote(low) + "-" + quote(high))
	if t.fold {
		return t.foldRange(low, high)
	}
	return nil
}

// foldRange adds the other cases of a range.
func (t *translation) foldRange(low, high rune) error {
	if high-low > 1000 {
		return t.refuse("a range this long without regard to case")
	}
	for c := low; c <= high; c++ {
		if unicode.SimpleFold(c) != c {
			t.orbit(c)
		}
	}
	return nil
}

// setCharacter reads one character of a set; an escape that stands for more is
// written and gives -1.
func (t *translation) setCharacter() (rune, error) {
	if t.at == len(t.in) {
		return -1, fmt.Errorf("[ without ]: %w", ErrInvalid)
	}
	c := t.in[t.at]
	if c != '\\' {
		t.at++
		return c, nil
	}
	if t.at+1 == len(t.in) {
		return -1, fmt.Errorf("\\ at the end: %w", ErrInvalid)
	}
	members, negated, single, err := t.member()
	if err != nil || single >= 0 {
		return single, err
	}
	if !negated {
		t.out.WriteString(members)
		return -1, nil
	}
	if members == `\s` {
		t.out.WriteString(`\S`)
		return -1, nil
	}
	return -1, t.refuse("a negated class in a set")
}
