package batch

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Bounds of the duration of a step with prefill, relative to a decode-only step
// of the same sequences.
const (
	// minSlowdown is always allowed: a little less than the factor of two at
	// which users notice slower decoding, with room for other work of some
	// steps such as growing and saving the cache.
	minSlowdown = 1.6
	// maxSlowdown is allowed if prefill would otherwise miss its target,
	// lastResortSlowdown if it would miss the promise even so. On a device
	// where any prefill adds about a whole step, many small chunks delay
	// decoding more than a few large ones.
	maxSlowdown, lastResortSlowdown = 4.0, 12.0
	// nearly: a larger chunk must prefill more than a tenth faster, otherwise
	// decoding would be delayed for little.
	nearly = 0.9
	// Prefill is planned to take targetSlowdown times its prefill-only time,
	// and may take promisedSlowdown, a little less than the promised factor of
	// three. The time planned for the rest of a prefill is between rushed and
	// idle times its prefill-only time, however late or early it is.
	targetSlowdown, promisedSlowdown = 2.75, 2.95
	rushed, idle                     = 2.6, 4.5
	// sharedSlowdown is how many times as long steps take on average next to prompts of other tenants, a little
	// less than the promised factor of two.
	sharedSlowdown = 1.8
)

const (
	// firstTokens is the size of the first chunk while the prefill speed is
	// unknown.
	firstTokens = 128
	// loneSlice is the target duration of prefill-only steps, and with that the
	// time until a cancellation takes effect.
	loneSlice = time.Second
	// sharedSlice is that duration while several tenants have requests and for sharedFor after that: the first
	// token of another waits for such a step. It may take as long as sharedTokens without context: fewer would take
	// much longer per token.
	sharedSlice  = 200 * time.Millisecond
	sharedFor    = 10 * time.Second
	sharedTokens = 32
	// sharedStep is how long a step next to sequences of other tenants may take in any case, if the prefill needs it.
	sharedStep = 200 * time.Millisecond
	// probe: after this many mixed steps, one decode-only step measures the
	// time of decoding alone. It is less than one step in a hundred because a
	// GPU may have to rebuild its graphs for it, which doubles its time.
	probe = 128
	// guess replaces probe while the number of decode sequences was never
	// measured and its time is extrapolated.
	guess = 8
	// ahead limits how far beyond the largest measured size a chunk may be:
	// four times as many tokens.
	ahead = 4
	// halvings is the number of bisections when the bound of a step is
	// computed; parts is the number of sections into which the rest of the
	// prefill is divided.
	halvings, parts = 6, 6
	// patience smooths the bound over this many steps, but at most an eighth of
	// the prompt's steps so far, so that steps do not become longer while other
	// programs load the machine.
	patience = 32
)

// Pace decides how many prefill tokens a step may contain, from the durations
// of past steps.
//
// While requests decode, prefill may take up to 2.75 times its prefill-only
// time, less than the promised factor of three. Within that, the longest step
// is made as short as possible: a token costs more with a longer context, so
// the first chunks of a prompt are larger than the last, and steps take about
// the same time. If that would need steps of more than 4 times the decode-only
// time, prefill may take up to 2.95 times as long; if that is not enough, steps
// may take up to 12 times as long. Steps of up to 1.6 times are always allowed.
// If no large prefill-only step has shown how long prefill takes, as decoding
// never pauses, a few steps that also decode are as large.
//
// The time of a prompt counts less than the sequences of other tenants. While several
// tenants share the steps, decode-only steps follow those that take longer, so that decoding
// takes at most 1.8 times as long on average.
// The zero value is ready to use.
type Pace struct {
	// Slice is the target duration of prefill-only steps while several tenants have requests; 0 is 200 ms.
	Slice time.Duration
	measured
	// spent is the total duration in seconds of the steps since the current
	// head became the head, aloneWorth the prefill-only time of the
	// prefill tokens in them.
	spent, aloneWorth float64
	head              ID
	// stretch is the smoothed bound of a step relative to its decode-only time,
	// planned the number of values in it.
	stretch, planned float64
	size             int // chunk size of the last step
	// tried is measured.mixed when measured.large was set, and pause for how many
	// mixed steps it is not set again.
	tried, pause int
	busy         bool // some request is in prefill
	// lately is for how many more seconds of steps slices are short after Work.Shared. owed is
	// how many seconds decode-only steps take before one with prefill, while that is set.
	lately, owed float64
	outlook      outlook
}

// Owe counts the duration of a step for the pauses after those that take longer, also if it shows nothing about
// others. Only decode-only steps end a pause, and none of them by more than its usual duration: it may have contained
// other work.
func (p *Pace) Owe(l Load, d time.Duration) {
	step := p.step(l.Decodes, float64(l.DecodeContext))
	switch {
	case step == 0 || l.Decodes == 0:
	case l.PrefillTokens == 0:
		p.owed = max(p.owed-min(d.Seconds(), step), -step) // more would be saved up for later prompts
	case l.Shared:
		p.owed = min(p.owed+pause(d.Seconds(), step), max(loneSlice.Seconds(), pause(lastResortSlowdown*step, step)))
	}
}

// Took records the duration of a step.
func (p *Pace) Took(l Load, d time.Duration) {
	took := d.Seconds()
	if took <= 0 {
		return
	}
	p.lately -= took
	p.add(l, took)
	if p.busy {
		p.spent += took
		p.aloneWorth += float64(l.PrefillTokens) * p.token(l.depth())
	}
}

// Tokens returns the number of prefill tokens for the next step, at most limit.
// It is 0 if no request is in prefill, or if the step is to measure the
// decode-only time.
func (p *Pace) Tokens(w Work, limit int) int {
	if !p.busy || p.head != w.Head {
		p.spent, p.aloneWorth, p.head, p.planned = 0, 0, w.Head, 0
	}
	if w.Shared {
		p.lately = sharedFor.Seconds()
	}
	if p.busy = len(w.Prompts) > 0; !p.busy {
		return 0
	}
	if w.Decodes == 0 {
		return p.alone(float64(w.Prompts[0].From), limit)
	}
	step := p.step(w.Decodes, float64(w.DecodeContext))
	if step == 0 || w.Shared && p.owed > 0 || p.since >= probe || p.decodeOnly[w.Decodes] == nil && p.since >= guess {
		return 0
	}
	if n := p.slice(w, step, limit); p.atLeast(like(n)) < enough && p.mixed-p.tried >= max(probe, p.pause) {
		return p.try(n)
	}
	b := &p.outlook
	b.shared = w.Shared
	b.look(&p.measured, w, step, min(sizeOf(max(1, limit)), p.explored()+ahead))
	p.stretch += (b.bound(p.spent, p.aloneWorth)/step - p.stretch) / min(patience, 1+p.planned/8)
	p.planned++
	p.size = b.near(p.size, p.stretch*step)
	return min(limit, int(b.tokens[p.size]))
}

// alone is the number of tokens of a prefill-only step at a context length.
func (p *Pace) alone(from float64, limit int) int {
	if p.speed.n == 0 {
		return min(limit, firstTokens)
	}
	n := loneSlice.Seconds() / p.speed.at(from, p.deeper(from))
	if p.lately > 0 {
		n = min(n, max(cmp.Or(p.Slice, sharedSlice).Seconds(), sharedTokens*p.quickest)/p.token(from))
	}
	return max(1, min(limit, int(n)))
}

// pause is for how long decode-only steps follow one that takes longer.
func pause(took, step float64) float64 {
	return max(0, took-sharedSlowdown*step) / (sharedSlowdown - 1)
}

// Growth is by how much more a token of a prompt costs per token of its context, see Scheduler.Weigh.
func (p *Pace) Growth(w Work) float64 {
	if p.quickest <= 0 {
		return 0
	}
	deepest := 0
	for _, s := range w.Prompts {
		deepest = max(deepest, s.From)
	}
	return p.deeper(float64(deepest)) / p.quickest
}

// slice is the number of prefill tokens that a prefill-only step would have. A
// token takes at most step, the seconds of a decode-only step.
func (p *Pace) slice(w Work, step float64, limit int) int {
	waiting, token := 0, p.token(float64(w.Prompts[0].From))
	for _, s := range w.Prompts {
		waiting += s.To - s.From
	}
	if token == 0 {
		token = step
	}
	return max(1, min(limit, waiting, int(loneSlice.Seconds()/min(token, step))))
}

// try returns the prefill tokens of a step that shows the prefill speed. If the
// last such step had fewer in the end, as memory was short, the pause until the
// next doubles.
func (p *Pace) try(tokens int) int {
	if p.pause *= 2; p.large == 0 {
		p.pause = probe
	}
	p.large, p.tried = tokens, p.mixed
	return tokens
}

// outlook is the state from which Pace plans the rest of the prefill.
type outlook struct {
	// step is the decode-only time of a step now, growth its increase per step,
	// in seconds.
	step, growth float64
	// tokens and extra are, by chunk size, the tokens of a chunk and by how
	// many seconds it prolongs a step now. deeper is the increase of that per
	// chunk token and token of context.
	tokens, extra []float64
	deeper        float64
	// depth is the context length at which the next chunk begins.
	depth float64
	// parts are sections of the rest of the prefill; alone is their
	// prefill-only time in seconds, 0 if unknown.
	parts []part
	alone float64
	// shared steps are followed by pauses.
	shared bool
	// speeds is a buffer of under.
	speeds []float64
}

// part is a section of a prefill: tokens with an average context of depth.
type part struct{ tokens, depth float64 }

// look fills the outlook from measurements, for chunk sizes up to top.
func (b *outlook) look(m *measured, w Work, step float64, top int) {
	*b = outlook{
		step: step, growth: m.decodeTrend.slope() * float64(w.Decodes), deeper: m.extraTrend.slope(),
		depth: float64(w.Prompts[0].From), tokens: b.tokens[:0], extra: b.extra[:0], parts: b.parts[:0], speeds: b.speeds, shared: b.shared,
	}
	spans := w.Prompts[:min(parts, len(w.Prompts))]
	for _, s := range spans {
		n := max(1, parts/len(spans))
		tokens := float64(s.To-s.From) / float64(n)
		for i := range n {
			depth := float64(s.From) + tokens*(float64(i)+0.5)
			b.parts = append(b.parts, part{tokens, depth})
			b.alone += tokens * m.token(depth)
		}
	}
	for k := range top + 1 {
		b.tokens = append(b.tokens, float64(chunkTokens(w.Decodes, k)))
	}
	b.extra = m.estimates(b.tokens, w.Decodes, b.depth, b.extra)
}

// at is by how much a chunk of size k prolongs a step at a context length.
func (b *outlook) at(k int, depth float64) float64 {
	return max(b.extra[k]+b.deeper*b.tokens[k]*(depth-b.depth), remains*b.extra[k])
}

// all is how long a step takes with the pause after it.
func (b *outlook) all(took, step float64) float64 {
	if b.shared {
		took += pause(took, step)
	}
	return took
}

// under is the smallest chunk size that prefills nearly as fast as any size
// whose step takes at most bound, given a context length and the decode-only
// time.
func (b *outlook) under(bound, depth, step float64) int {
	quickest := 0.0
	b.speeds = b.speeds[:0]
	for k := range b.extra {
		speed := 0.0
		if t := step + b.at(k, depth); k == 0 || t <= bound {
			speed = b.tokens[k] / b.all(t, step)
		}
		b.speeds = append(b.speeds, speed)
		quickest = max(quickest, speed)
	}
	return slices.IndexFunc(b.speeds, func(speed float64) bool { return speed >= nearly*quickest })
}

// near is the chunk size of the next step, bounded by bound. It prefers the
// last size if that is nearly as fast, because a GPU builds graphs for every
// size.
func (b *outlook) near(last int, bound float64) int {
	k := b.under(bound, b.depth, b.step)
	if last < len(b.extra) {
		if t := b.step + b.extra[last]; t <= bound && b.tokens[last]/b.all(t, b.step) >= nearly*b.speeds[k] {
			return last
		}
	}
	return k
}

// finish estimates how long the rest of the prefill takes with steps of at most
// bound.
func (b *outlook) finish(bound float64) (took float64) {
	steps := 0.0
	for _, part := range b.parts {
		step := b.step + b.growth*steps
		k := b.under(bound, part.depth, step)
		n := part.tokens / b.tokens[k]
		took += n * b.all(step+b.at(k, part.depth), step)
		steps += n
	}
	return took
}

// bound is the smallest bound of a step with which prefill meets its target.
// The steps so far took spent seconds and prefilled tokens worth that many
// seconds of prefill-only time.
func (b *outlook) bound(spent, worth float64) float64 {
	if b.alone == 0 {
		return minSlowdown * b.step
	}
	left := func(slower float64) float64 {
		return min(max(slower*(b.alone+worth)-spent, rushed*b.alone), idle*b.alone)
	}
	in, top := left(targetSlowdown), maxSlowdown
	if t := b.finish(maxSlowdown * b.step); t > in {
		// A prefill that is only slightly late is not worth longer steps.
		if t > left(promisedSlowdown) {
			top = lastResortSlowdown
			if b.shared { // pauses make up for it
				top = max(top, sharedStep.Seconds()/b.step)
			}
			t = b.finish(top * b.step)
		}
		in = max(in, min(t/nearly, left(promisedSlowdown)), t)
	}
	return b.least(minSlowdown*b.step, top*b.step, in)
}

// least is the smallest bound in [low, high] with which the rest of the prefill
// takes at most left; high if none does.
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
