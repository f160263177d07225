package batch

import (
	"math/bits"
	"slices"
	"time"
)

// The bounds of a step that computes prompts beside answers, against the step
// of the same answers alone.
const (
	// stall is how long it may take, a little under the twofold that nobody who
	// reads an answer is to notice.
	stall = 1.85
	// most is how long it may take where prompts would otherwise fall behind.
	most = 4.0
	// behind is how much slower than alone a prompt may become, a little under
	// the threefold that is promised.
	behind = 2.75
)

const (
	// firstTokens of a prompt are computed at once before its speed is known.
	firstTokens = 128
	// loneSlice is how late a cancel is seen while prompts are computed alone.
	loneSlice = time.Second
	// probe: after so many steps with prompts comes one without, which says what
	// the answers take alone.
	probe = 32
	// stale: what pieces of a size took is forgotten after so many steps with
	// prompts that had none of it, so that a size is tried again, rarely.
	stale = 256
)

// Pace says how many tokens of prompts a step may take, from how long steps
// took before. Beside answers, a step is to take less than twice as long as
// without prompts. Where that would leave prompts less than a third of the speed
// that they have alone, steps become longer, up to four times. The zero value is
// ready.
type Pace struct {
	// alone is what steps of so many answers took without prompts.
	alone map[int]*window
	// extra is how much longer steps with pieces of each size took.
	extra []size
	// speed is what tokens of prompts took without answers, in seconds each.
	speed window
	// mixed counts steps with prompts and answers; since is that of those after
	// the last step without prompts.
	mixed, since int
}

// size is what pieces of about so many tokens took.
type size struct {
	window
	seen int // Pace.mixed when it was last measured
}

// Took records a step: how many answers, how many tokens of prompts.
func (p *Pace) Took(answers, tokens int, d time.Duration) {
	took := d.Seconds()
	switch {
	case took <= 0:
	case tokens == 0:
		if p.alone == nil {
			p.alone = map[int]*window{}
		}
		if p.alone[answers] == nil {
			p.alone[answers] = &window{}
		}
		p.alone[answers].add(took)
		p.since = 0
	case answers == 0:
		p.speed.add(took / float64(tokens))
	case p.alone[answers] != nil:
		p.mixed++
		p.since++
		k := sizeOf(tokens)
		for len(p.extra) <= k {
			p.extra = append(p.extra, size{})
		}
		e := &p.extra[k]
		e.add(max(0, took-p.alone[answers].median()) * float64(tokensOf(k)) / float64(tokens))
		e.seen = p.mixed
	default:
		p.since++
	}
}

// Tokens of prompts for the next step, at most limit; 0 where the step is to
// show what its answers take alone.
func (p *Pace) Tokens(answers, limit int) int {
	if answers == 0 {
		if p.speed.n == 0 {
			return min(limit, firstTokens)
		}
		return max(1, min(limit, int(loneSlice.Seconds()/p.speed.median())))
	}
	if p.alone[answers] == nil || p.since >= probe {
		return 0
	}
	step := p.alone[answers].median()
	top := min(sizeOf(max(1, limit)), p.explored()+2)
	best := 0
	for k := 1; k <= top; k++ {
		if step+p.estimate(k) <= stall*step {
			best = k
		}
	}
	return min(limit, tokensOf(p.keepUp(best, top, step)))
}

// keepUp is the smallest size, best or above, with which prompts do not fall
// behind, as far as steps do not take too long.
func (p *Pace) keepUp(best, top int, step float64) int {
	if p.speed.n == 0 {
		return best
	}
	wanted := 1 / (behind * p.speed.median()) // tokens a second
	for k := best; ; k++ {
		enough := float64(tokensOf(k)) >= wanted*(step+p.estimate(k))
		if enough || k >= top || step+p.estimate(k+1) > most*step {
			return k
		}
	}
}

// explored is the largest size that was measured lately, -1 where none was.
func (p *Pace) explored() int {
	for k := len(p.extra) - 1; k >= 0; k-- {
		if p.known(k) {
			return k
		}
	}
	return -1
}

// known says that a size was measured lately, and more than once: its first
// step may have compiled kernels.
func (p *Pace) known(k int) bool {
	return k < len(p.extra) && p.extra[k].n > 1 && p.mixed-p.extra[k].seen < stale
}

// estimate is how much longer a step with a piece of a size takes: what was
// measured; beyond the next smaller one that was, at best as much more as its
// further tokens take alone; below the smallest one, its share.
func (p *Pace) estimate(k int) float64 {
	tokens := float64(tokensOf(k))
	for j := k; j >= 0; j-- {
		if p.known(j) {
			return p.extra[j].median() + p.beyond(j, tokens-float64(tokensOf(j)))
		}
	}
	for j := k + 1; j < len(p.extra); j++ {
		if p.known(j) {
			return p.extra[j].median() * tokens / float64(tokensOf(j))
		}
	}
	return p.speed.median() * tokens
}

// beyond is what so many tokens more than a size take.
func (p *Pace) beyond(j int, tokens float64) float64 {
	if p.speed.n > 0 {
		return p.speed.median() * tokens
	}
	return p.extra[j].median() * tokens / float64(tokensOf(j))
}

// tokensOf are the sizes 1, 2, 3, 4, 6, 8, 12, 16 and so on.
func tokensOf(k int) int {
	if k%2 == 1 {
		return 1 << ((k + 1) / 2)
	}
	if k == 0 {
		return 1
	}
	return 3 << (k/2 - 1)
}

// sizeOf is the largest size of at most so many tokens.
func sizeOf(tokens int) int {
	high := bits.Len(uint(tokens)) - 1 // the power of two below
	switch {
	case high == 0:
		return 0
	case tokens >= 3<<(high-1):
		return 2 * high
	}
	return 2*high - 1
}

// window holds the last measurements of one thing.
type window struct {
	values [7]float64
	n, at  int
}

func (w *window) add(v float64) {
	w.values[w.at] = v
	w.at = (w.at + 1) % len(w.values)
	w.n = min(w.n+1, len(w.values))
}

// median of what was measured, the lower of two in the middle; 0 where nothing
// was.
func (w *window) median() float64 {
	if w.n == 0 {
		return 0
	}
	sorted := w.values
	slices.Sort(sorted[:w.n])
	return sorted[(w.n-1)/2]
}
