package toolcall

import (
	"bytes"
	"strings"
)

// sink joins what a parser reports.
type sink struct {
	// held: calls are reported while they are written, else once they are complete.
	held   bool
	events []Event
	// last is more text of the event that was reported last.
	last []byte
	// calls were complete; broken ones were returned as text.
	calls, broken int
	// control are the format's control tokens, and tail the end of the text and of the
	// thoughts so far: nothing is added to it that makes up such a token.
	control []string
	tail    [2]string
	// waiting is a call that is not complete, where calls are not held.
	waiting *waitingCall
}

type waitingCall struct {
	name      string
	arguments []byte
}

// text reports content, or thoughts.
func (s *sink) text(k Kind, text string) {
	longest := 0
	for _, c := range s.control {
		longest = max(longest, len(c))
	}
	all := s.tail[k] + text
	if strings.ContainsAny(text, ">]") { // how control tokens end
		all = s.without(s.tail[k], text)
	}
	s.tell(k, all[len(s.tail[k]):])
	if s.tail[k] = all[max(0, len(all)-longest):]; len(all) > mostSpare {
		s.tail[k] = strings.Clone(s.tail[k]) // which keeps no more of the text
	}
}

// without is a text, after a tail, without the bytes that would make up a control token.
func (s *sink) without(tail, text string) string {
	kept := []byte(tail)
	for i := range len(text) {
		if kept = append(kept, text[i]); s.completes(kept) {
			kept = kept[:len(kept)-1]
		}
	}
	return string(kept)
}

func (s *sink) completes(text []byte) bool {
	for _, c := range s.control {
		if bytes.HasSuffix(text, []byte(c)) {
			return true
		}
	}
	return false
}

// begin reports a call of a function.
func (s *sink) begin(name string) {
	if s.held {
		s.tell(Begin, name)
		return
	}
	s.waiting = &waitingCall{name: name}
}

// arguments reports the next piece of a call's arguments.
func (s *sink) arguments(text string) {
	if s.held {
		s.tell(Arguments, text)
		return
	}
	s.waiting.arguments = append(s.waiting.arguments, text...)
}

// whole ends a call that is complete.
func (s *sink) whole() {
	s.calls++
	s.pass()
	s.tell(End, "")
}

// pass reports a call that waits.
func (s *sink) pass() {
	if c := s.waiting; c != nil {
		s.tell(Begin, c.name)
		s.tell(Arguments, string(c.arguments))
	}
	s.waiting = nil
}

// cut ends a call that the end of the answer cut.
func (s *sink) cut(written string) {
	s.pass()
	s.tell(End, written)
}

// refuse ends a call that is none, and returns whether its beginning was reported. A call
// that is known to be none was counted before.
func (s *sink) refuse(begun, known bool, written string) (reported bool) {
	if !known {
		s.broken++
	}
	s.waiting = nil
	if s.held && begun {
		s.tell(End, written)
		return true
	}
	return false
}

func (s *sink) tell(k Kind, text string) {
	if text == "" && k != Begin && k != End {
		return
	}
	if n := len(s.events); n > 0 && s.events[n-1].Kind == k && k != Begin && k != End {
		s.last = append(s.last, text...)
		return
	}
	s.join()
	s.events = append(s.events, Event{k, text})
}

func (s *sink) join() {
	if len(s.last) > 0 {
		s.events[len(s.events)-1].Text += string(s.last)
		s.last = emptied(s.last)
	}
}

func (s *sink) take() []Event {
	s.join()
	out := s.events
	s.events = nil
	return out
}
