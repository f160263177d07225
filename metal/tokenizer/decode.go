package tokenizer

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// A decoder is a list of steps. Each step takes the texts of tokens and gives
// texts on, as the reference's decoders do; after a step that fuses, all text
// is one token, which comes in parts.

// step makes a stage for one stream.
type step func() stage

// stage is a step at work. It gives on whole characters only.
type stage interface {
	push(token string, out func(string))
	flush(out func(string))
}

// decoding is a decoder in the making.
type decoding struct {
	steps []step
	fused bool
	// growth is how many times longer its replacements may make a token.
	growth int
	// stands maps the text of a token to the bytes that it produces after other
	// tokens.
	stands []func(string) string
}

func (d *decoding) add(s step, stands func(string) string) {
	d.steps = append(d.steps, s)
	if stands != nil {
		d.stands = append(d.stands, stands)
	}
}

// decoderKinds are the components that are known.
func decoderKinds() map[string]func(*decoding, component) error {
	return map[string]func(*decoding, component) error{
		"ByteLevel":    (*decoding).byteLevel,
		"ByteFallback": (*decoding).byteFallback,
		"Metaspace":    (*decoding).metaspace,
		"WordPiece":    (*decoding).wordPiece,
		"BPEDecoder":   (*decoding).wordEnds,
		"Replace":      (*decoding).replace,
		"Strip":        (*decoding).strip,
		"Fuse":         (*decoding).fuse,
	}
}

// readDecoder builds the decoder of a tokenizer.json. Without one, tokens are
// joined by spaces.
func readDecoder(raw json.RawMessage) (*decoding, error) {
	d := new(decoding)
	if raw == nil {
		d.add(func() stage { return new(joinStage) }, nil)
		return d, nil
	}
	steps, err := flatten(raw, "decoder", "decoders")
	if err != nil {
		return nil, err
	}
	known := decoderKinds()
	for _, s := range steps {
		build, ok := known[s.kind]
		if !ok {
			return nil, unsupported("decoder", s.kind, known)
		}
		if err := build(d, s); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// alone refuses a step that needs to see tokens where they are fused already.
func (d *decoding) alone(c component) error {
	if d.fused {
		return fmt.Errorf("decoder %s follows a decoder that joins all tokens: %w", c.kind, ErrUnsupported)
	}
	return nil
}

func (d *decoding) byteLevel(c component) error {
	if err := d.alone(c); err != nil {
		return err
	}
	d.add(func() stage { return new(byteLevelStage) }, standsInAlphabet)
	d.fused = true
	return nil
}

// standsInAlphabet gives the bytes of a token, which need not be characters.
func standsInAlphabet(token string) string {
	if raw, ok := appendAlphabet(nil, token); ok {
		return string(raw)
	}
	return token
}

// bytesAsText is the decoder of a vocabulary that holds bytes.
func bytesAsText() *decoding {
	return &decoding{steps: []step{func() stage { return &byteLevelStage{raw: true} }}, fused: true}
}

// byteLevelStage joins bytes into characters; it holds back at most three.
type byteLevelStage struct {
	held []byte
	raw  bool // tokens come as bytes
}

func (s *byteLevelStage) push(token string, out func(string)) {
	if !s.raw {
		token = standsInAlphabet(token)
	}
	if len(s.held) == 0 && token != "" && utf8.ValidString(token) {
		out(token)
		return
	}
	s.held = append(s.held, token...)
	n := len(s.held) - openTail(s.held)
	if n > 0 {
		out(validUTF8(string(s.held[:n])))
	}
	s.held = append(s.held[:0], s.held[n:]...)
}

func (s *byteLevelStage) flush(out func(string)) {
	if len(s.held) > 0 {
		out(validUTF8(string(s.held)))
	}
	s.held = s.held[:0]
}

func (d *decoding) byteFallback(c component) error {
	if err := d.alone(c); err != nil {
		return err
	}
	d.bytesOf()
	return nil
}

func (d *decoding) bytesOf() {
	d.add(func() stage { return new(fallbackStage) }, func(token string) string {
		if b, ok := byteToken(token); ok {
			return string([]byte{b})
		}
		return token
	})
}

// byteToken reads "<0x0A>". As in the reference, the digits may be a sign and
// a digit.
func byteToken(token string) (byte, bool) {
	if len(token) != 6 || token[:3] != "<0x" || token[5] != '>' || token[3] == '-' {
		return 0, false
	}
	n, err := strconv.ParseUint(strings.TrimPrefix(token[3:5], "+"), 16, 8)
	return byte(n), err == nil
}

// fallbackStage turns runs of byte tokens into text: the characters they spell,
// or one U+FFFD for each byte where any part of the run is broken. A run that
// may still be whole is held back until it ends.
type fallbackStage struct {
	run    []byte
	whole  int // how many of its first bytes are whole characters
	broken bool
}

func (s *fallbackStage) push(token string, out func(string)) {
	b, ok := byteToken(token)
	if !ok {
		s.flush(out)
		out(token)
		return
	}
	if s.broken {
		out(replacement)
		return
	}
	s.run = append(s.run, b)
	n := len(s.run) - openTail(s.run)
	if s.broken = !utf8.Valid(s.run[s.whole:n]); s.broken {
		s.giveUp(out)
	}
	s.whole = n
}

func (s *fallbackStage) giveUp(out func(string)) {
	for range s.run {
		out(replacement)
	}
	s.run = s.run[:0]
}

func (s *fallbackStage) flush(out func(string)) {
	if s.whole == len(s.run) && len(s.run) > 0 {
		out(string(s.run))
	} else {
		s.giveUp(out)
	}
	s.run, s.whole, s.broken = s.run[:0], 0, false
}

func (d *decoding) metaspace(c component) error {
	f, err := readMetaspace(c)
	if err != nil {
		return err
	}
	mark, drop, fused := f.Replacement, f.PrependScheme != "never", d.fused
	d.add(func() stage {
		return &mapStage{of: func(i int, token string) string {
			if drop && (i == 0 || fused) {
				return strings.ReplaceAll(token, mark, "")
			}
			return strings.ReplaceAll(token, mark, " ")
		}}
	}, func(token string) string { return strings.ReplaceAll(token, mark, " ") })
	return nil
}

// mapStage maps each token by itself; i is its place.
type mapStage struct {
	of func(i int, token string) string
	i  int
}

func (s *mapStage) push(token string, out func(string)) {
	out(s.of(s.i, token))
	s.i++
}

func (s *mapStage) flush(func(string)) { s.i = 0 }

func (s *mapStage) follow() { s.i = 1 }

func (d *decoding) wordPiece(c component) error {
	f := struct {
		Prefix  string `json:"prefix"`
		Cleanup bool   `json:"cleanup"`
	}{Prefix: "##", Cleanup: true}
	if err := c.into(&f); err != nil {
		return err
	}
	if err := d.alone(c); err != nil {
		return err
	}
	of := func(i int, token string) string {
		if i > 0 {
			rest, continues := strings.CutPrefix(token, f.Prefix)
			if token = rest; !continues {
				token = " " + token
			}
		}
		if f.Cleanup {
			token = cleanUp(token)
		}
		return token
	}
	d.add(func() stage { return &mapStage{of: of} }, func(token string) string { return of(1, token) })
	return nil
}

// cleanUp takes out spaces that English does not have, in the reference's
// order.
func cleanUp(s string) string {
	if !strings.Contains(s, " ") {
		return s
	}
	for _, r := range [][2]string{
		{" .", "."}, {" ?", "?"}, {" !", "!"}, {" ,", ","}, {" ' ", "'"}, {" n't", "n't"}, {" 'm", "'m"},
		{" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"},
	} {
		s = strings.ReplaceAll(s, r[0], r[1])
	}
	return s
}

func (d *decoding) wordEnds(c component) error {
	f := struct {
		Suffix string `json:"suffix"`
	}{Suffix: "</w>"}
	if err := c.into(&f); err != nil {
		return err
	}
	if f.Suffix == "" || len(f.Suffix) > maxReplacement {
		return fmt.Errorf("decoder %s has a suffix of %d bytes, want 1 to %d: %w", c.kind, len(f.Suffix), maxReplacement, ErrUnsupported)
	}
	if d.fused {
		d.add(func() stage { return &replaceStage{old: f.Suffix} }, nil)
		return nil
	}
	d.add(func() stage { return &wordEndStage{suffix: f.Suffix} }, func(token string) string {
		return strings.ReplaceAll(token, f.Suffix, " ")
	})
	return nil
}

// wordEndStage makes spaces of the ends of words, none at the end of all. A
// token that ends a word waits for the next one.
type wordEndStage struct {
	suffix, held string
}

func (s *wordEndStage) push(token string, out func(string)) {
	if s.held != "" {
		out(strings.ReplaceAll(s.held, s.suffix, " "))
	}
	s.held = token
	if !strings.Contains(token, s.suffix) {
		s.held = ""
		out(token)
	}
}

func (s *wordEndStage) flush(out func(string)) {
	if s.held != "" {
		out(strings.ReplaceAll(s.held, s.suffix, ""))
	}
	s.held = ""
}

// maxGrowth bounds how many times longer the replacements of a decoder, one after another, make a
// token. Those of models make none longer.
const maxGrowth = 4

func (d *decoding) replace(c component) error {
	var f struct {
		Pattern pattern `json:"pattern"`
		Content string  `json:"content"`
	}
	if err := c.into(&f); err != nil {
		return err
	}
	if err := f.Pattern.check(c.kind); err != nil {
		return err
	}
	if f.Pattern.String == nil || *f.Pattern.String == "" {
		return fmt.Errorf("decoder %s requires a String that is not empty: %w", c.kind, ErrUnsupported)
	}
	from, to := *f.Pattern.String, f.Content
	if max(len(from), len(to)) > maxReplacement {
		return fmt.Errorf("decoder %s replaces %d bytes by %d, more than %d: %w", c.kind, len(from), len(to), maxReplacement, ErrUnsupported)
	}
	if d.growth = max(1, d.growth) * max(1, (len(to)+len(from)-1)/len(from)); d.growth > maxGrowth {
		return fmt.Errorf("the decoder may make a token %d times longer, more than %d: %w", d.growth, maxGrowth, ErrUnsupported)
	}
	d.replaceText(from, to)
	return nil
}

func (d *decoding) replaceText(from, to string) {
	of := func(token string) string { return strings.ReplaceAll(token, from, to) }
	if d.fused {
		d.add(func() stage { return &replaceStage{old: from, with: to} }, of)
		return
	}
	d.add(func() stage { return &mapStage{of: func(_ int, token string) string { return of(token) }} }, of)
}

// replaceStage replaces in one long text. It holds back an end that may become
// a match.
type replaceStage struct {
	old, with, held string
}

func (s *replaceStage) push(part string, out func(string)) {
	text := s.held + part
	var b strings.Builder
	for {
		before, after, found := strings.Cut(text, s.old)
		if !found {
			break
		}
		b.WriteString(before)
		b.WriteString(s.with)
		text = after
	}
	n := min(len(text), len(s.old)-1)
	for !strings.HasPrefix(s.old, text[len(text)-n:]) {
		n--
	}
	b.WriteString(text[:len(text)-n])
	s.held = text[len(text)-n:]
	if b.Len() > 0 {
		out(b.String())
	}
}

func (s *replaceStage) flush(out func(string)) {
	if s.held != "" {
		out(s.held)
	}
	s.held = ""
}

// maxStrip bounds how many characters a Strip step takes away.
const maxStrip = 64

func (d *decoding) strip(c component) error {
	var f struct {
		Content string `json:"content"`
		Start   int    `json:"start"`
		Stop    int    `json:"stop"`
	}
	if err := c.into(&f); err != nil {
		return err
	}
	if utf8.RuneCountInString(f.Content) != 1 || f.Start < 0 || f.Stop < 0 || f.Start > maxStrip || f.Stop > maxStrip {
		return fmt.Errorf("decoder %s requires one character and up to %d at start and stop: %w", c.kind, maxStrip, ErrInvalid)
	}
	whole := stripStage{content: f.Content, start: f.Start, stop: f.Stop, left: f.Start}
	if d.fused {
		d.add(func() stage { s := whole; return &s }, nil)
		return nil
	}
	of := func(token string) string {
		var b strings.Builder
		s := whole
		out := func(part string) { b.WriteString(part) }
		s.push(token, out)
		return b.String() // what waits for more is stripped
	}
	d.add(func() stage { return &mapStage{of: func(_ int, token string) string { return of(token) }} }, of)
	return nil
}

// stripStage takes a character from the start and the end of one long text. It
// holds back what may be the end.
type stripStage struct {
	content     string
	start, stop int
	left        int // how many more may go at the start
	held        int // how many wait at the end
}

func (s *stripStage) push(part string, out func(string)) {
	for s.left > 0 && part != "" {
		rest, ok := strings.CutPrefix(part, s.content)
		if !ok {
			s.left = 0
			break
		}
		part, s.left = rest, s.left-1
	}
	if part == "" {
		return
	}
	part = strings.Repeat(s.content, s.held) + part
	s.held = 0
	for s.held < s.stop && strings.HasSuffix(part, s.content) {
		part, s.held = part[:len(part)-len(s.content)], s.held+1
	}
	if part != "" {
		out(part)
	}
}

func (s *stripStage) flush(func(string)) { s.left, s.held = s.start, 0 }

func (s *stripStage) follow() { s.left = 0 }

func (d *decoding) fuse(component) error {
	d.join()
	return nil
}

func (d *decoding) join() {
	d.add(func() stage { return &mapStage{of: func(_ int, token string) string { return token }} }, nil)
	d.fused = true
}

// joinStage puts a space between tokens.
type joinStage struct{ more bool }

func (s *joinStage) push(token string, out func(string)) {
	if s.more {
		out(" ")
	}
	s.more = true
	out(token)
}

func (s *joinStage) flush(func(string)) { s.more = false }

func (s *joinStage) follow() { s.more = true }
