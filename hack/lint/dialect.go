package lint

import (
	"cmp"
	_ "embed"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// phraseList is the list of phrases and names, with replacements.
//
//go:embed phrases.txt
var phraseList string

// visibleBound is the maximum number of listed phrases per 10,000 words of user-visible
// text. It only falls, and ends at 1.
const visibleBound = 1

// phrase is one line of the list.
type phrase struct {
	pattern *regexp.Regexp
	use     string
	// allowed matches contexts in which the phrase is plain English.
	allowed *regexp.Regexp
}

// dialect is the parsed list.
type dialect struct {
	phrases []phrase
	any     *regexp.Regexp    // all patterns in one, for speed
	names   map[string]string // a word of an identifier, and its replacement
}

// finding is a place where the old dialect is used.
type finding struct {
	at          string // the package or document that it counts for
	kind        string // kind of text
	file        string
	line        int
	phrase, use string
}

func (f finding) String() string {
	return fmt.Sprintf("%s:%d: %q; write: %s", f.file, f.line, f.phrase, f.use)
}

// Kinds of text, in the order in which they are recorded. Those of tests have
// "test-" in front.
const (
	inComments    = "comments"
	inStrings     = "strings"
	inIdentifiers = "identifiers"
	inText        = "text" // of a document
)

// parseDialect reads a list of phrases.
func parseDialect(list string) (dialect, error) {
	d := dialect{names: map[string]string{}}
	var all []string
	names := false
	for i, line := range strings.Split(list, "\n") {
		line = strings.TrimSpace(line)
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
		case line == "identifiers:":
			names = true
		case names:
			name, use, ok := strings.Cut(line, " -> ")
			if !ok {
				return d, fmt.Errorf("phrases.txt:%d: want NAME -> REPLACEMENT", i+1)
			}
			d.names[name] = use
		default:
			p, source, err := parsePhrase(line)
			if err != nil {
				return d, fmt.Errorf("phrases.txt:%d: %w", i+1, err)
			}
			d.phrases = append(d.phrases, p)
			all = append(all, source)
		}
	}
	any, err := regexp.Compile(`(?i)\b(?:` + strings.Join(all, "|") + `)`)
	d.any = any
	return d, err
}

// parsePhrase also returns the source of the pattern.
func parsePhrase(line string) (phrase, string, error) {
	parts := strings.SplitN(line, " => ", 3)
	if len(parts) < 2 {
		return phrase{}, "", fmt.Errorf("want PATTERN => REPLACEMENT, not %q", line)
	}
	spaced := strings.ReplaceAll(parts[0], " ", `\s+`)
	if !strings.HasSuffix(spaced, "/") && !strings.HasSuffix(spaced, "$)") {
		spaced += `\b`
	}
	p := phrase{use: parts[1]}
	var err error
	if p.pattern, err = regexp.Compile(`(?i)^` + spaced); err != nil || len(parts) < 3 {
		return p, spaced, err
	}
	var allowed []string
	for _, around := range strings.Split(parts[2], " || ") {
		before, after, _ := strings.Cut(strings.ReplaceAll(around, " ", `\s+`), "{}")
		if before != "" {
			before = `\b` + before
		}
		if after != "" {
			after += `\b`
		}
		allowed = append(allowed, before+"\x00"+after)
	}
	p.allowed, err = regexp.Compile(`(?i)(?:` + strings.Join(allowed, "|") + `)`)
	return p, spaced, err
}

// hit is a phrase in a text.
type hit struct {
	offset int
	phrase string
	use    string
}

// around is the number of bytes before and after a phrase that allowed is matched against.
const around = 60

// in lists the phrases in a text.
func (d dialect) in(text string) (out []hit) {
	for from := 0; ; {
		at := d.any.FindStringIndex(text[from:])
		if at == nil {
			return out
		}
		start := from + at[0]
		length := 1
		for _, p := range d.phrases {
			found := p.pattern.FindString(text[start:])
			if found == "" {
				continue
			}
			length = len(found)
			// A NUL byte replaces the phrase.
			context := text[max(0, start-around):start] + "\x00" + text[start+length:min(len(text), start+length+around)]
			if p.allowed == nil || !p.allowed.MatchString(context) {
				out = append(out, hit{start, strings.Join(strings.Fields(found), " "), p.use})
			}
			break
		}
		from = start + length
	}
}

// findings of all segments.
func (d dialect) findings(segments []segment) (out []finding) {
	for _, s := range segments {
		for _, m := range d.in(s.text) {
			out = append(out, finding{s.at, s.kind, s.file, s.line + strings.Count(s.text[:m.offset], "\n"), m.phrase, m.use})
		}
	}
	return out
}

// identifiers lists the declared names that hold a word of the list.
func (d dialect) identifiers(sources []source) (out []finding) {
	for _, s := range sources {
		if s.generated {
			continue
		}
		for _, id := range declared(s.tree) {
			for _, word := range words(id.Name) {
				use := cmp.Or(d.names[word], d.names[strings.TrimSuffix(word, "s")], d.names[strings.TrimSuffix(word, "es")])
				if use != "" {
					out = append(out, finding{s.pkg, kindOf(s, inIdentifiers), s.path, s.set.Position(id.Pos()).Line, id.Name, use})
				}
			}
		}
	}
	return out
}

func kindOf(s source, kind string) string {
	if s.test {
		return "test-" + kind
	}
	return kind
}

// isVisible reports whether a user reads a segment: documents, the chart,
// messages of the programs, and comments that become descriptions of the API.
func isVisible(s segment) bool {
	switch s.kind {
	case inText:
		return strings.HasPrefix(s.at, "docs/") || strings.HasPrefix(s.at, "charts/") ||
			slices.Contains([]string{"README.md", "CONTRIBUTING.md", "SECURITY.md"}, s.at)
	case inComments:
		return s.at == "api/v1alpha1"
	case inStrings:
		house, _, _ := strings.Cut(s.at, "/")
		// A literal without a space is a name, not a sentence.
		return strings.Contains(s.text, " ") && slices.Contains([]string{"agent", "api", "cmd", "controllers", "gateway", "metal"}, house)
	}
	return false
}

// density is how many phrases 10,000 words hold that a user reads.
func (d dialect) density(segments []segment) (perTenThousand float64, found []finding) {
	count := 0
	for _, s := range segments {
		if isVisible(s) {
			count += len(strings.Fields(s.text))
			found = append(found, d.findings([]segment{s})...)
		}
	}
	return float64(len(found)) * 10000 / float64(max(count, 1)), found
}
