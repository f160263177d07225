package batch

// Load is the amount of work in a step.
type Load struct {
	// Decodes is the number of decode sequences, DecodeContext their total
	// context length in tokens.
	Decodes, DecodeContext int
	// PrefillTokens is the number of prefill tokens, PrefillContext the sum of
	// their context lengths.
	PrefillTokens, PrefillContext int
	// Shared is Step.Shared.
	Shared bool
}

// Work is the work that is ready for the next plan.
type Work struct {
	// Decodes is the number of decode sequences, DecodeContext their total
	// context length in tokens.
	Decodes, DecodeContext int
	// Prompts are the requests in prefill in the order in which they advance;
	// Head is the first one's request.
	Prompts []Span
	Head    ID
	// Shared: the sequences and prompts are of several tenants.
	Shared bool
}

// Span is the range of positions [From, To) of a prompt.
type Span struct{ From, To int }

// depth is the average context length of a prefill token.
func (l Load) depth() float64 { return float64(l.PrefillContext) / float64(max(1, l.PrefillTokens)) }

// Load returns the amount of work in the step.
func (s Step) Load() (l Load) {
	l.Shared = s.Shared
	for _, r := range s.Rows {
		if r.Decode() {
			l.Decodes++
			l.DecodeContext += r.Start
			continue
		}
		l.PrefillTokens += r.Length
		l.PrefillContext += r.Length * (2*r.Start + r.Length) / 2
	}
	return l
}

// Work returns the work from which the next plan is made. Its Prompts are valid
// until the next call.
func (s *Scheduler) Work() Work {
	w := Work{Prompts: s.spans[:0]}
	var first *tenant
	for _, r := range s.running {
		if r.decodes() {
			w.Decodes++
			w.DecodeContext += r.computed
		} else if !r.prefills() {
			continue
		}
		if first == nil {
			first = r.tenant
		}
		w.Shared = w.Shared || r.tenant != first
	}
	if head := s.prefill(nil); head != nil && !s.paused {
		w.Head = head.id
		w.Prompts = append(w.Prompts, Span{head.computed, head.known})
		for _, r := range s.prompts {
			w.Prompts = append(w.Prompts, Span{r.computed, r.known})
		}
	}
	s.spans = w.Prompts
	return w
}
