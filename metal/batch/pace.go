package batch

import (
	"math"
	"slices"
	"time"
)

// The bounds of a step that computes prompts beside answers, against the step
// of the same answers alone.
const (
	// calm is how long it may take whether prompts need that or not: a little under
	// the twofold that nobody who reads an answer is to notice, with room for what
	// some steps do beside, as growing a cache and saving what it holds.
	calm = 1.6
	// most is how long it may take where prompts would otherwise fall behind, and
	// far where even that would leave them behind: on a device whose steps with
	// prompts cost as much again whatever their size, many small pieces hold up
	// answers longer than a few large ones.
	most, far = 4.0, 12.0
	// nearly: a larger piece has to bring more than a tenth more of the prompt in
	// the same time, or answers would wait for nothing.
	nearly = 0.9
	// behind is how much slower than alone prompts are planned to be, promised what
	// they may become, a little less than three times. Of what is left of them, rushed is the least and idle the most
	// that a plan gives, however late or early they are.
	behind, promised = 2.75, 2.95
	rushed, idle     = 2.6, 4.5
)

const (
	// firstTokens of a prompt are computed at once before its speed is known.
	firstTokens = 128
	// loneSlice is how late a cancel is seen while prompts are computed alone.
	loneSlice = time.Second
	// probe: after so many steps with prompts comes one without, which says what the
	// answers take alone. It is less than one in a hundred: a GPU that has to make its
	// graphs anew takes twice as long for it.
	probe = 128
	// guess: after so many where that was never measured for so many answers, and
	// is guessed from another number of them.
	guess = 8
	// ahead: so many sizes above the largest that was measured is the next that is
	// tried, four times as many tokens.
	ahead = 4
	// halvings of the span in which the bound of a step is looked for; parts of what
	// is left for which a plan is made.
	halvings, parts = 6, 6
	// patience is how many steps it takes until a change of the bound counts, though
	// of a prompt's steps so far no more than an eighth: while others keep the machine
	// busy, steps are not to become longer still.
	patience = 32
)

// Pace says how many tokens of prompts a step may take, from how long steps
// took before.
//
// Prompts beside answers have 2.75 times the time that they would take alone, less
// than the threefold that is promised. Within that, the longest step is to be as
// short as can be: a token costs the more the more it looks back at, so a
// prompt's first steps have more tokens than its last, and about the same length.
// Where that would take steps of more than four times what the answers take alone,
// prompts may take three times as long; where that is not enough either, steps
// become up to twelve times as long. A step of up to 1.6 times is always right. The
// zero value is ready.
type Pace struct {
	measured
	// spent are the seconds that steps took since the oldest prompt is that, worth what
	// the tokens of prompts in them would have taken alone.
	spent, worth float64
	oldest       ID
	// stretch is the bound of a step against what its answers take alone, which was
	// planned so often.
	stretch, planned float64
	size             int  // of the last step
	busy             bool // prompts are under way
	outlook          outlook
}

// Took records a step.
func (p *Pace) Took(l Load, d time.Duration) {
	took := d.Seconds()
	if took <= 0 {
		return
	}
	p.add(l, took)
	if p.busy {
		p.spent += took
		p.worth += float64(l.Tokens) * p.token(l.depth())
	}
}

// Tokens of prompts for the next step, at most limit; 0 where the step is to
// show what its answers take alone, or where there is no prompt.
func (p *Pace) Tokens(w Work, limit int) int {
	if !p.busy || p.oldest != w.Oldest {
		p.spent, p.worth, p.oldest, p.planned = 0, 0, w.Oldest, 0
	}
	if p.busy = len(w.Prompts) > 0; !p.busy {
		return 0
	}
	if w.Answers == 0 {
		if p.speed.n == 0 {
			return min(limit, firstTokens)
		}
		return max(1, min(limit, int(loneSlice.Seconds()/p.speed.median())))
	}
	step := p.step(w.Answers, float64(w.Seen))
	if step == 0 || p.since >= probe || p.alone[w.Answers] == nil && p.since >= guess {
		return 0
	}
	b := &p.outlook
	b.look(&p.measured, w, step, min(sizeOf(max(1, limit)), p.explored()+ahead))
	p.stretch += (b.bound(p.spent, p.worth)/step - p.stretch) / min(patience, 1+p.planned/8)
	p.planned++
	p.size = b.near(p.size, p.stretch*step)
	return min(limit, int(b.tokens[p.size]))
}

// outlook is how prompts could go on beside the answers.
type outlook struct {
	// step is what the answers take alone now, growth how much more after each step.
	step, growth float64
	// tokens of each size; extra is how much longer steps with them take now, in
	// seconds, and deeper how much more a token takes for each that it looks back at
	// further.
	tokens, extra []float64
	deeper        float64
	// depth is where the next step begins.
	depth float64
	// parts of what is left of the prompts; lone is what they would take alone, 0
	// where that is unknown.
	parts []part
	lone  float64
	// speeds of all sizes; scratch of under.
	speeds []float64
}

// part of a prompt: so many tokens, which look back at depth tokens each.
type part struct{ tokens, depth float64 }

// look at what was measured, for sizes up to top.
func (b *outlook) look(m *measured, w Work, step float64, top int) {
	*b = outlook{
		step: step, growth: m.aloneBy.slope() * float64(w.Answers), deeper: m.extraBy.slope(),
		depth: float64(w.Prompts[0].From), tokens: b.tokens[:0], extra: b.extra[:0], parts: b.parts[:0], speeds: b.speeds,
	}
	spans := w.Prompts[:min(parts, len(w.Prompts))]
	for _, s := range spans {
		n := max(1, parts/len(spans))
		tokens := float64(s.To-s.From) / float64(n)
		for i := range n {
			depth := float64(s.From) + tokens*(float64(i)+0.5)
			b.parts = append(b.parts, part{tokens, depth})
			b.lone += tokens * m.token(depth)
		}
	}
	for k := range top + 1 {
		b.tokens = append(b.tokens, float64(beside(w.Answers, k)))
	}
	b.extra = m.estimates(b.tokens, w.Answers, b.depth, b.extra)
}

// at is how much longer a step with a piece of a size takes at some depth.
func (b *outlook) at(k int, depth float64) float64 {
	return max(b.extra[k]+b.deeper*b.tokens[k]*(depth-b.depth), remains*b.extra[k])
}

// under is the smallest size that brings prompts on nearly as quickly as any whose
// step takes at most bound, at some depth beside answers that take step alone.
func (b *outlook) under(bound, depth, step float64) int {
	quickest := 0.0
	b.speeds = b.speeds[:0]
	for k := range b.extra {
		speed := 0.0
		if t := step + b.at(k, depth); k == 0 || t <= bound {
			speed = b.tokens[k] / t
		}
		b.speeds = append(b.speeds, speed)
		quickest = max(quickest, speed)
	}
	return slices.IndexFunc(b.speeds, func(speed float64) bool { return speed >= nearly*quickest })
}

// near is the size of the next step, of at most bound: the last one's where that is
// nearly as good, because a GPU makes graphs for every other size.
func (b *outlook) near(last int, bound float64) int {
	k := b.under(bound, b.depth, b.step)
	if last < len(b.extra) && b.step+b.extra[last] <= bound && b.tokens[last]/(b.step+b.extra[last]) >= nearly*b.speeds[k] {
		return last
	}
	return k
}

// finish is how long prompts take with steps of at most bound.
func (b *outlook) finish(bound float64) (took float64) {
	steps := 0.0
	for _, part := range b.parts {
		step := b.step + b.growth*steps
		k := b.under(bound, part.depth, step)
		n := part.tokens / b.tokens[k]
		took += n * (step + b.at(k, part.depth))
		steps += n
	}
	return took
}

// bound is the least with which prompts finish in time that took spent seconds
// already, for what is worth so many alone.
func (b *outlook) bound(spent, worth float64) float64 {
	if b.lone == 0 {
		return calm * b.step
	}
	left := func(slower float64) float64 {
		return min(max(slower*(b.lone+worth)-spent, rushed*b.lone), idle*b.lone)
	}
	in, top := left(behind), most
	if t := b.finish(most * b.step); t > in {
		// What is nearly enough is not worth longer steps.
		if t > left(promised) {
			top, t = far, b.finish(far*b.step)
		}
		in = max(in, min(t/nearly, left(promised)), t)
	}
	return b.least(calm*b.step, top*b.step, in)
}

// least is the smallest bound from low up to high with which prompts take no more
// than left, high where there is none.
func (b *outlook) least(low, high, left float64) float64 {
	if b.finish(low) <= left {
		return low
	}
	for range halvings {
		if middle := math.Sqrt(low * high); b.finish(middle) <= left {
			high = middle
		} else {
			low = middle
		}
	}
	return high
}
