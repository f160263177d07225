package sample

import "slices"

// mostSpare is how much room a matcher keeps for text: one piece may be all of an answer.
const mostSpare = 4 << 10

// StopMatcher finds stop strings in a text that arrives in pieces. It holds
// back only what may still become a stop string, and its answer does not
// depend on how the text is cut: the stop string that is complete first ends
// the text, the longest of them if several end at once. It is for one
// goroutine.
type StopMatcher struct {
	stops   []stopString
	held    []byte
	stopped bool
	matched string
}

// stopString is one stop string and how much of it the text ends with.
type stopString struct {
	text    string
	borders []int // longest proper border of each prefix
	state   int
}

// NewStopMatcher returns a matcher; empty strings are ignored.
func NewStopMatcher(stops []string) *StopMatcher {
	m := new(StopMatcher)
	for _, s := range stops {
		if s != "" {
			m.stops = append(m.stops, stopString{text: s, borders: borders(s)})
		}
	}
	return m
}

// Push adds a piece of text and returns what may be shown now. Once stopped is
// true the text has ended, and neither the stop string nor anything after it
// is returned.
func (m *StopMatcher) Push(text string) (show string, stopped bool) {
	if m.stopped {
		return "", true
	}
	if len(m.stops) == 0 {
		return text, false
	}
	for i := range len(text) {
		m.held = append(m.held, text[i])
		longest := 0
		for j := range m.stops {
			if m.stops[j].push(text[i]) {
				if n := len(m.stops[j].text); n > longest {
					longest, m.matched = n, m.stops[j].text
				}
			}
		}
		if longest > 0 {
			m.stopped = true
			show = string(m.held[:len(m.held)-longest])
			m.held = nil
			return show, true
		}
	}
	keep := 0
	for j := range m.stops {
		keep = max(keep, m.stops[j].state)
	}
	n := len(m.held) - keep
	show = string(m.held[:n])
	if m.held = append(m.held[:0], m.held[n:]...); cap(m.held) > mostSpare+2*len(m.held) {
		m.held = slices.Clone(m.held)
	}
	return show, false
}

// Matched is the stop string that ended the text, or empty.
func (m *StopMatcher) Matched() string { return m.matched }

// Flush ends the text without a stop string and returns the text held back.
func (m *StopMatcher) Flush() string {
	show := string(m.held)
	m.held = nil
	return show
}

// Break returns the text that was held back, because no stop string continues
// after it.
func (m *StopMatcher) Break() string {
	for j := range m.stops {
		m.stops[j].state = 0
	}
	return m.Flush()
}

// push advances by one byte and says whether the stop string is complete.
func (s *stopString) push(b byte) bool {
	for s.state > 0 && s.text[s.state] != b {
		s.state = s.borders[s.state-1]
	}
	if s.text[s.state] == b {
		s.state++
	}
	return s.state == len(s.text)
}

// borders returns for each prefix of s the length of its longest proper prefix
// that is also its suffix.
func borders(s string) []int {
	b := make([]int, len(s))
	n := 0
	for i := 1; i < len(s); i++ {
		for n > 0 && s[i] != s[n] {
			n = b[n-1]
		}
		if s[i] == s[n] {
			n++
		}
		b[i] = n
	}
	return b
}
