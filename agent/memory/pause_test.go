package memory

import "testing"

// TestPromptsPassUnderSoftPressureThatIsInterrupted, of engines within their limits: each of them
// decides about it where the others use what they reserved, and knows when prompts are let through.
func TestPromptsPassUnderSoftPressureThatIsInterrupted(t *testing.T) {
	full, rests := with(pinned(91), busy), with(pinned(80), busy)
	for name, second := range map[string]func(p *polls, i int) (waits bool){
		"it ends as soon as prompts pass": func(p *polls, _ int) bool {
			if !p.see(0, full).PausePrefill {
				return p.see(0, rests).PausePrefill
			}
			return true
		},
		"it is there between the polls that count": func(p *polls, _ int) bool {
			p.see(0, rests)
			return p.soon(full).PausePrefill
		},
		"it ends just before prompts would pass": func(p *polls, i int) bool {
			if i/(softPolls-1)%2 == 0 {
				return p.see(0, full).PausePrefill
			}
			return p.see(0, rests).PausePrefill
		},
		"it is there in every other poll": func(p *polls, i int) bool {
			if i%2 == 0 {
				return p.see(0, full).PausePrefill
			}
			return p.see(0, rests).PausePrefill
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, waits := newPolls(), 0
			for i := range 3600 {
				if second(p, i) {
					waits++
				}
			}
			if waits > 2*softPolls {
				t.Errorf("prompts wait in %d of 3600 polls", waits)
			}
		})
	}
}
