package batch

// Load is what a step computes.
type Load struct {
	// Answers of one token each, which look back at Seen tokens in all.
	Answers, Seen int
	// Tokens of prompts, which look back at Past tokens in all.
	Tokens, Past int
}

// Work is what there is to compute.
type Work struct {
	// Answers, whose next tokens look back at Seen tokens in all.
	Answers, Seen int
	// Prompts under way, in the order in which they advance; Oldest is that of the first.
	Prompts []Span
	Oldest  ID
}

// Span are the tokens of a prompt from one position up to another.
type Span struct{ From, To int }

// depth is how many tokens a token of a prompt looks back at, in the mean.
func (l Load) depth() float64 { return float64(l.Past) / float64(max(1, l.Tokens)) }

// Load is what the step computes, and what that looks back at.
func (s Step) Load() (l Load) {
	for _, r := range s.Rows {
		if r.Decode() {
			l.Answers++
			l.Seen += r.Start
			continue
		}
		l.Tokens += r.Length
		l.Past += r.Length * (2*r.Start + r.Length) / 2
	}
	return l
}

// Work is what the next plan computes a part of; its prompts are good until the next
// call.
func (s *Scheduler) Work() Work {
	w := Work{Prompts: s.spans[:0]}
	for _, r := range s.running {
		if r.answers() {
			w.Answers++
			w.Seen += r.computed
		}
	}
	if oldest := s.underWay(); oldest != nil && !s.paused {
		w.Oldest = oldest.id
		w.Prompts = append(w.Prompts, Span{oldest.computed, oldest.known})
		for _, r := range s.prompts {
			w.Prompts = append(w.Prompts, Span{r.computed, r.known})
		}
	}
	s.spans = w.Prompts
	return w
}
