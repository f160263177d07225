package batch

import (
	"math"
	"math/bits"
	"slices"
	"time"
)

// The bounds of a step that computes prompts beside answers, against the step
// of the same answers alone.
const (
	// stall is how long it may take, a little under the twofold that nobody who
	// reads an answer is to notice; calm leaves room below it for what some steps
	// do beside, as growing a cache and saving what it holds.
	stall, calm = 1.85, 1.6
	// most is how long it may take where prompts would otherwise fall behind, and
	// far where even that would leave them behind: on a device whose steps with
	// prompts cost as much again whatever their size, many small pieces hold up
	// answers longer than a few large ones.
	most, far = 4.0, 12.0
	// nearly: a larger piece has to bring more than a tenth more of the prompt in
	// the same time, or answers would wait for nothing.
	nearly = 0.9
	// ahead: so many sizes above the largest that was measured is the next that is
	// tried, four times as many tokens.
	ahead = 4
	// noticed is where answers have to wait anyway: from there on they had better do
	// so more rarely, and then rare is how long a step may take; enough: less than half
	// of what they wait is not worth larger pieces. It is above stall: a step that is a
	// little longer than that is not to become one of several times as long.
	noticed, rare, enough = 2.5, 6.0, 2.0
	// behind is how much slower than alone a prompt may become, a little under
	// what is promised; saving, as long as answers hardly notice, which is credit for
	// later; spending, where they would, as long as there is credit.
	behind, promised = 2.75, 3.0
	saving, spending = 2.25, 3.5
)

const (
	// firstTokens of a prompt are computed at once before its speed is known.
	firstTokens = 128
	// loneSlice is how late a cancel is seen while prompts are computed alone.
	loneSlice = time.Second
	// probe: after so many steps with prompts comes one without, which says what
	// the answers take alone.
	probe = 32
	// guess: after so many where that was never measured for so many answers, and
	// is guessed from another number of them.
	guess = 8
	// stale: what pieces of a size took is forgotten after so many steps with
	// prompts that had none of it, so that a size is tried again, rarely.
	stale = 256
	// few steps say little of a size: while a prompt is read in, others keep the
	// machine busy.
	few = 5
	// counting: a size that has less than an eighth of the tokens that were computed
	// without answers does not say how quick that is.
	counting = 8
	// saved: credit is at most what so many steps of the answers take alone.
	saved = 256
)

// Pace says how many tokens of prompts a step may take, from how long steps
// took before. Beside answers, a step is to take less than twice as long as
// without prompts. Where that would leave prompts less than a third of the speed
// that they have alone, steps become longer, up to four times, or twelve where
// nothing less would do; up to six where answers then wait half of it in all. What
// came sooner than that is credit, of which later steps are kept short. The zero
// value is ready.
type Pace struct {
	// alone is what steps of so many answers took without prompts.
	alone map[int]*window
	// extra is how much longer steps with pieces of each size took.
	extra []size
	// speed is what tokens of prompts took without answers, in seconds each, in
	// pieces of sizes that were computed before.
	speed    window
	computed uint64 // a bit for each size
	// lone are the last of these by size, the oldest overwritten; quickest is what
	// they say a token takes in pieces of the size that suits the machine best.
	lone     [16]lone
	loneAt   int
	quickest float64
	// credit is how much sooner than they have to prompts came so far, in seconds: a
	// prompt's first pieces look back at little and take less than its last.
	credit float64
	// mixed counts steps with prompts and answers; since is that of those after
	// the last step without prompts.
	mixed, since int
}

// lone is what a token took, in a piece of so many without answers; none for
// nothing.
type lone struct {
	size, tokens int
	token        float64
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
		k := sizeOf(tokens)
		if p.computed&(1<<k) == 0 {
			p.computed |= 1 << k // its first step may have compiled kernels
			break
		}
		p.speed.add(took / float64(tokens))
		p.lone[p.loneAt] = lone{k, tokens, took / float64(tokens)}
		p.loneAt = (p.loneAt + 1) % len(p.lone)
		p.quickest = p.least()
	case p.step(answers) > 0:
		p.mixed++
		p.since++
		k := sizeBeside(answers, tokens)
		for len(p.extra) <= k {
			p.extra = append(p.extra, size{})
		}
		e := &p.extra[k]
		if p.outdated(k) {
			e.window = window{}
		}
		e.add(max(0, took-p.step(answers)) * float64(beside(answers, k)) / float64(tokens))
		e.seen = p.mixed
		p.credit += float64(tokens)*behind*p.quickest - took
		p.credit = min(max(p.credit, 0), saved*p.step(answers))
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
	step := p.step(answers)
	if step == 0 || p.since >= probe || p.alone[answers] == nil && p.since >= guess {
		return 0
	}
	b := pieces{p, answers, step, saving}
	top := min(sizeOf(max(1, limit)), p.explored()+ahead)
	best := b.gentlest(top)
	k := b.keepUp(best, top)
	if b.takes(k) > stall*step {
		b.slower = behind
		k = b.keepUp(best, top)
	}
	if b.takes(k) > noticed*step && p.credit > 0 {
		b.slower = spending
		k = b.keepUp(best, top)
	}
	if b.takes(k) > noticed*step {
		k = b.fewer(k, top)
	}
	return min(limit, beside(answers, k))
}

// beside is how many tokens a piece of a size has beside answers: with them as
// many rows as the size has, as devices compute rows in tiles of 8, 32 and more, so
// that a piece of 32 beside an answer would take as long as one of 63. Where
// answers would be an eighth of these rows, the piece has them all.
func beside(answers, k int) int {
	if n := tokensOf(k); 8*answers < n {
		return n - answers
	}
	return tokensOf(k)
}

// sizeBeside is the largest size of which a piece of so many tokens is one.
func sizeBeside(answers, tokens int) int {
	k := sizeOf(tokens)
	for beside(answers, k+1) <= tokens {
		k++
	}
	return k
}

// pieces are those that a step may have beside so many answers, which alone take
// step.
type pieces struct {
	*Pace
	answers int
	step    float64
	slower  float64 // how much than alone a prompt may become
}

// tokens that a piece of a size has.
func (b pieces) tokens(k int) float64 { return float64(beside(b.answers, k)) }

// takes is how long a step with a piece of a size takes.
func (b pieces) takes(k int) float64 { return b.step + b.estimate(k) }

// gentlest is the smallest size that brings prompts on nearly as quickly as any
// with which answers are quick enough.
func (b pieces) gentlest(top int) int {
	speed := func(k int) float64 {
		if t := b.takes(k); k == 0 || t <= calm*b.step {
			return b.tokens(k) / t
		}
		return 0
	}
	quickest := 0.0
	for k := range top + 1 {
		quickest = max(quickest, speed(k))
	}
	k := 0
	for speed(k) < nearly*quickest {
		k++
	}
	return k
}

// step is what a step of so many answers takes without prompts, at least: as it
// was measured, or that of the nearest number that is no less than half or more
// than twice as many; 0 where none is.
func (p *Pace) step(answers int) float64 {
	if w := p.alone[answers]; w != nil {
		return w.median()
	}
	for d := 1; d <= answers; d++ {
		if w := p.alone[answers-d]; w != nil && 2*(answers-d) >= answers {
			return w.median()
		}
		if w := p.alone[answers+d]; w != nil {
			return w.median() * float64(answers) / float64(answers+d)
		}
	}
	return 0
}

// keepUp is the smallest size, best or above, with which prompts do not fall
// behind, in a step that takes as little too long as it can; where there is none,
// the largest whose step does not take much too long.
func (b pieces) keepUp(best, top int) int {
	if b.speed.n == 0 {
		return best
	}
	near, quick := b.within(most, best, top)
	if b.keepsUp(near) {
		return near
	}
	// What is nearly enough is not worth longer steps.
	if further, quicker := b.within(far, best, top); quick*promised*b.quickest < 1 && quicker > quick {
		return further
	}
	return near
}

// keepsUp says whether a prompt that comes in pieces of a size does not fall behind.
func (b pieces) keepsUp(k int) bool { return b.takes(k) <= b.tokens(k)*b.slower*b.quickest }

// within is the smallest size, best or above, with which prompts do not fall
// behind in a step of at most bound times what it takes without, or the largest,
// and how many tokens a second that is.
func (b pieces) within(bound float64, best, top int) (size int, quick float64) {
	for k := best; k <= top; k++ {
		t := b.takes(k)
		if t > bound*b.step && k > best {
			continue
		}
		if size, quick = k, b.tokens(k)/t; b.keepsUp(k) {
			break
		}
	}
	return size, quick
}

// least is what a token of a prompt takes alone, in seconds, by the size of pieces
// with which that is least, of those measured lately. A size that has a small part
// of their tokens does not count: short prompts look back at little, and would have
// long ones keep up with them.
func (p *Pace) least() float64 {
	least, all := p.speed.median(), 0
	for _, of := range p.lone {
		all += of.tokens
	}
	for _, of := range p.lone {
		var same window
		tokens := 0
		for _, l := range p.lone {
			if l.size == of.size && l.tokens > 0 {
				same.add(l.token)
				tokens += l.tokens
			}
		}
		if counting*tokens >= all && tokens > 0 {
			least = min(least, same.median())
		}
	}
	return least
}

// fewer is a size, k or above, for answers that have to wait anyway: so much
// larger that they wait more rarely and less in all. What the largest size makes
// them wait for each token of the prompt, it does twice at most.
func (b pieces) fewer(k, top int) int {
	cost := func(k int) float64 { return b.estimate(k) / b.tokens(k) }
	least := cost(k)
	for l := k + 1; l <= top && b.takes(l) <= rare*b.step; l++ {
		least = min(least, cost(l))
	}
	for cost(k) > enough*least {
		k++
	}
	return k
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
	return k < len(p.extra) && p.extra[k].n > 1 && !p.aged(k)
}

// aged says that a size was measured long ago.
func (p *Pace) aged(k int) bool { return p.mixed-p.extra[k].seen >= stale }

// believed says that a size was measured, lately, and that this is no accident: a
// few steps that took longer than those of a larger size are one.
func (b pieces) believed(k int) bool {
	return b.known(k) && !b.outdated(k) && (b.extra[k].n >= few || b.extra[k].median() <= b.larger(k))
}

// outdated says that what was measured of a size is no longer true: it was long ago,
// or a larger size took less meanwhile, as where a prompt's last pieces looked back at
// more than the next one's first.
func (p *Pace) outdated(k int) bool {
	e := &p.extra[k]
	if e.n == 0 || p.aged(k) {
		return true
	}
	return slices.ContainsFunc(p.extra[k+1:], func(l size) bool {
		return l.n > 1 && l.seen-e.seen > probe && l.median() < e.median()
	})
}

// larger is the least of what larger sizes than k take, infinite where none was
// measured.
func (b pieces) larger(k int) float64 {
	least := math.Inf(1)
	for j := k + 1; j < len(b.extra); j++ {
		if b.known(j) {
			least = min(least, b.extra[j].median())
		}
	}
	return least
}

// estimate is how much longer a step with a piece of a size takes: what was
// measured; beyond the next smaller one that was, at best as much more as its
// further tokens take alone; below the smallest one, the least share of a larger
// one, so that it is tried where it may be quick.
func (b pieces) estimate(k int) float64 {
	for j := k; j >= 0; j-- {
		if b.believed(j) {
			return b.extra[j].median() + b.beyond(j, b.tokens(k)-b.tokens(j))
		}
	}
	share := math.Inf(1)
	for j := k + 1; j < len(b.extra); j++ {
		if b.believed(j) {
			share = min(share, b.extra[j].median()*b.tokens(k)/b.tokens(j))
		}
	}
	if math.IsInf(share, 1) {
		return b.speed.median() * b.tokens(k)
	}
	return share
}

// beyond is what so many tokens more than a size take.
func (b pieces) beyond(j int, tokens float64) float64 {
	if b.speed.n > 0 {
		return b.speed.median() * tokens
	}
	return b.extra[j].median() * tokens / b.tokens(j)
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
	values [15]float64
	n, at  int
	middle float64
}

func (w *window) add(v float64) {
	w.values[w.at] = v
	w.at = (w.at + 1) % len(w.values)
	w.n = min(w.n+1, len(w.values))
	sorted := w.values
	slices.Sort(sorted[:w.n])
	w.middle = sorted[(w.n-1)/2]
}

// median of what was measured, the lower of two in the middle; 0 where nothing
// was.
func (w *window) median() float64 { return w.middle }
