package batch

import (
	"math"
	"math/bits"
	"slices"
)

const (
	// stale: the measurements of a chunk size are discarded after this many
	// mixed steps without that size, so that it is tried again from time to
	// time.
	stale = 256
	// few: fewer measurements of a size than this may be outliers, because
	// other programs load the machine during a prefill.
	few = 5
	// later: a smaller time of a larger size invalidates a measurement if it is
	// at least this many mixed steps newer.
	later = 32
	// counting: a size with less than 1/counting of the tokens of prefill-only
	// steps is ignored when the fastest size is chosen.
	counting = 8
	// enough of the largest prefill-only steps are remembered: of two, the shorter
	// time counts.
	enough = 2
	// reach is up to which multiple of the differences in context length of past steps, as the root of
	// the sum of their squares, a trend is known.
	reach = 8
	// remains is the smallest fraction of a measurement that is kept when it is
	// extrapolated to a smaller context.
	remains = 0.25
)

// measured estimates step times in seconds from past steps. Times depend on the
// context length that a step attends to.
type measured struct {
	// decodeOnly holds the times of decode-only steps by number of sequences,
	// decodeTrend their growth per token of context.
	decodeOnly  map[int]*window
	decodeTrend trend
	// extra holds, by chunk size, by how much a prefill chunk prolonged a
	// decode step; extraTrend is the growth of that per token of context.
	extra      []size
	extraTrend trend
	lengths    []float64 // buffer of longer
	// speed holds seconds per token of prefill-only steps whose chunk size has
	// been used before, tokenTrend the growth per token of context.
	speed      window
	tokenTrend trend
	computed   uint64 // bit set of chunk sizes
	// prefillOnly is a ring of the latest of these measurements with their
	// sizes, and of enough of the largest. quickest is the time per token at
	// context 0 with the fastest size.
	prefillOnly [16]prefillSample
	nextPrefill int
	quickest    float64
	// large is set if a step with decode sequences is to show the prefill speed:
	// the next one with at least this many prefill tokens counts as prefill-only.
	large int
	// mixed counts steps with both prefill and decode; since counts those after
	// the last decode-only step.
	mixed, since int
}

// prefillSample is the time per token of a prefill-only step; tokens is 0 in an
// unused entry.
type prefillSample struct {
	size, tokens int
	point
}

// size holds the times of one chunk size.
type size struct {
	window
	seen int // measured.mixed at the last measurement
}

// add records the time of a step.
func (m *measured) add(l Load, took float64) {
	switch step := m.step(l.Decodes, float64(l.DecodeContext)); {
	case l.PrefillTokens == 0:
		if m.decodeOnly == nil {
			m.decodeOnly = map[int]*window{}
		}
		if m.decodeOnly[l.Decodes] == nil {
			m.decodeOnly[l.Decodes] = &window{}
		}
		m.decodeOnly[l.Decodes].add(float64(l.DecodeContext), took)
		m.decodeTrend.add(l.Decodes, float64(l.DecodeContext), took)
		m.since = 0
	case l.Decodes == 0:
		m.addLone(l, took/float64(l.PrefillTokens))
	case step > 0:
		if m.large > 0 && l.PrefillTokens >= m.large {
			m.large = 0 // its decode rows cost about as much as others
			m.addLone(l, took/float64(l.PrefillTokens+l.Decodes))
		}
		m.mixed++
		m.since++
		k := chunkSize(l.Decodes, l.PrefillTokens)
		for len(m.extra) <= k {
			m.extra = append(m.extra, size{})
		}
		e := &m.extra[k]
		if e.n > 0 && m.mixed-e.seen > later && m.outdated(k, m.longer(l.Decodes, l.depth())) {
			e.window = window{}
		}
		token := max(0, took-step) / float64(l.PrefillTokens)
		e.add(l.depth(), token*float64(chunkTokens(l.Decodes, k)))
		e.seen = m.mixed
		m.extraTrend.add(k, l.depth(), token)
	default:
		m.since++
	}
}

// addLone records the time per token of a prefill-only step. Tiny steps take
// longer per token and are ignored once larger ones are known.
func (m *measured) addLone(l Load, token float64) {
	k := sizeOf(l.PrefillTokens)
	if m.computed&(1<<k) == 0 {
		m.computed |= 1 << k // the first step may have compiled kernels
		return
	}
	m.speed.add(l.depth(), token)
	if m.atLeast(counting*l.PrefillTokens) < enough {
		m.tokenTrend.add(k, l.depth(), token)
		for m.keeps(m.prefillOnly[m.nextPrefill], l.PrefillTokens) {
			m.nextPrefill = (m.nextPrefill + 1) % len(m.prefillOnly)
		}
		m.prefillOnly[m.nextPrefill] = prefillSample{k, l.PrefillTokens, point{l.depth(), token}}
		m.nextPrefill = (m.nextPrefill + 1) % len(m.prefillOnly)
	}
	m.quickest = m.least()
}

// keeps reports whether a measurement is one of the largest, which one of fewer
// tokens does not replace. It is not if it is larger than prefill-only steps are
// planned.
func (m *measured) keeps(l prefillSample, fewer int) bool {
	return fewer < like(l.tokens) && m.atLeast(like(l.tokens)) <= enough && float64(like(l.tokens))*l.y <= loneSlice.Seconds()
}

// atLeast is the number of recent prefill-only measurements with at least this
// many tokens.
func (m *measured) atLeast(tokens int) (n int) {
	for _, l := range m.prefillOnly {
		if l.tokens >= tokens {
			n++
		}
	}
	return n
}

// like is the smallest step that takes about as long per token as one of this
// many tokens.
func like(tokens int) int { return tokens * 3 / 4 }

// token is the time per token of a prefill-only step at a context length; 0 if
// unknown.
func (m *measured) token(depth float64) float64 {
	if m.speed.n == 0 {
		return 0
	}
	return m.quickest + m.deeper(depth)*depth
}

// deeper is the growth of that time per token of context, up to a context length. If prefill-only steps were
// much less deep, mixed steps may show it: while sequences decode there are no others.
func (m *measured) deeper(depth float64) float64 {
	by := m.tokenTrend.slope()
	if depth*depth > reach*reach*m.tokenTrend.xx {
		by = max(by, m.extraTrend.slope())
	}
	return by
}

// least is the time per token of prefill-only steps at context 0 with the
// fastest of the recent chunk sizes. Sizes with a small part of the tokens are
// ignored: a few short prompts do not represent long ones.
func (m *measured) least() float64 {
	by, all := m.tokenTrend.slope(), 0
	least := m.speed.at(0, by)
	for _, of := range m.prefillOnly {
		all += of.tokens
	}
	for _, of := range m.prefillOnly {
		var same window
		tokens := 0
		for _, l := range m.prefillOnly {
			if l.size == of.size && l.tokens > 0 {
				same.add(l.x, l.y)
				tokens += l.tokens
			}
		}
		if counting*tokens >= all && tokens > 0 {
			least = min(least, same.at(0, by))
		}
	}
	return least
}

// step estimates the time of a decode-only step. Without a measurement for this
// number of sequences it uses the nearest number between half and twice as
// many; 0 if there is none.
func (m *measured) step(answers int, seen float64) float64 {
	by := m.decodeTrend.slope()
	if w := m.decodeOnly[answers]; w != nil {
		return w.at(seen, by)
	}
	for d := 1; d <= answers; d++ {
		if w := m.decodeOnly[answers-d]; w != nil && 2*(answers-d) >= answers {
			return w.at(seen, by)
		}
		if w := m.decodeOnly[answers+d]; w != nil {
			return w.at(seen, by) * float64(answers) / float64(answers+d)
		}
	}
	return 0
}

// explored is the largest recently measured chunk size, or -1.
func (m *measured) explored() int {
	for k := len(m.extra) - 1; k >= 0; k-- {
		if m.known(k) {
			return k
		}
	}
	return -1
}

// known reports whether a size was measured recently and more than once: its
// first step may have compiled kernels.
func (m *measured) known(k int) bool {
	return k < len(m.extra) && m.extra[k].n > 1 && !m.aged(k)
}

// aged reports whether the last measurement of a size is stale.
func (m *measured) aged(k int) bool { return m.mixed-m.extra[k].seen >= stale }

// longer returns, by chunk size, by how much a chunk prolongs a decode step at
// a context length; +Inf for sizes without measurements. The slice is valid
// until the next call.
func (m *measured) longer(answers int, depth float64) []float64 {
	by := m.extraTrend.slope()
	m.lengths = m.lengths[:0]
	for k := range m.extra {
		length := math.Inf(1)
		if m.known(k) {
			length = m.extra[k].at(depth, by*float64(chunkTokens(answers, k)))
		}
		m.lengths = append(m.lengths, length)
	}
	return m.lengths
}

// outdated reports whether the measurements of a size are stale or contradicted
// by a newer, smaller time of a larger size.
func (m *measured) outdated(k int, longer []float64) bool {
	return m.aged(k) || m.less(k, later, longer)
}

// believed reports whether the measurements of a size are recent and not
// outliers. A few measurements that exceed those of a larger size count as
// outliers.
func (m *measured) believed(k int, longer []float64) bool {
	return m.known(k) && !m.outdated(k, longer) && (m.extra[k].n >= few || !m.less(k, math.MinInt, longer))
}

// less reports whether a larger size than k took less time, in a measurement at
// least than mixed steps newer.
func (m *measured) less(k, than int, longer []float64) bool {
	for j := k + 1; j < len(longer); j++ {
		if longer[j] < longer[k] && m.extra[j].seen-m.extra[k].seen > than {
			return true
		}
	}
	return false
}

// estimates appends to into, by chunk size, by how much a chunk of that many
// tokens prolongs a decode step at a context length. It uses measurements where
// they are credible. Above the largest smaller measured size it adds the
// prefill-only time of the additional tokens. Under the smallest measured size
// it uses the smallest measured share per token, so that small sizes that may
// be fast are tried.
func (m *measured) estimates(tokens []float64, answers int, depth float64, into []float64) []float64 {
	longer, token := m.longer(answers, depth), m.token(depth)
	share := math.Inf(1) // per token
	for k := range longer {
		if m.believed(k, longer) {
			share = min(share, longer[k]/float64(chunkTokens(answers, k)))
		} else {
			longer[k] = math.Inf(1)
		}
	}
	if math.IsInf(share, 1) {
		share = token
	}
	below := -1
	for k, n := range tokens {
		if k < len(longer) && !math.IsInf(longer[k], 1) {
			below = k
		}
		switch {
		case below < 0:
			into = append(into, share*n)
		case token > 0:
			into = append(into, longer[below]+token*(n-tokens[below]))
		default:
			into = append(into, longer[below]*n/tokens[below])
		}
	}
	return into
}

// chunkTokens is the number of prefill tokens in a chunk of size k next to this
// many decode sequences. Devices compute rows in tiles of 8, 32 and more, so
// that chunk and decode rows together should fill the size: otherwise a chunk
// of 32 and one decode row would take as long as 63 rows. If decode rows are at
// least an eighth of the size, the chunk gets the whole size.
func chunkTokens(answers, k int) int {
	if n := tokensOf(k); 8*answers < n {
		return n - answers
	}
	return tokensOf(k)
}

// chunkSize is the largest size k with chunkTokens(answers, k) <= tokens.
func chunkSize(answers, tokens int) int {
	k := sizeOf(tokens)
	for chunkTokens(answers, k+1) <= tokens {
		k++
	}
	return k
}

// tokensOf maps the sizes 0, 1, 2... to 1, 2, 3, 4, 6, 8, 12, 16 and so on
// rows.
func tokensOf(k int) int {
	if k%2 == 1 {
		return 1 << ((k + 1) / 2)
	}
	if k == 0 {
		return 1
	}
	return 3 << (k/2 - 1)
}

// sizeOf is the largest size with at most this many rows.
func sizeOf(tokens int) int {
	high := bits.Len(uint(tokens)) - 1 // floor(log2(tokens))
	switch {
	case high == 0:
		return 0
	case tokens >= 3<<(high-1):
		return 2 * high
	}
	return 2*high - 1
}

// point is a measurement: y seconds at a context of x tokens.
type point struct{ x, y float64 }

// window holds the latest measurements of one quantity.
type window struct {
	points  [15]point
	n, next int
}

func (w *window) add(x, y float64) {
	w.points[w.next] = point{x, y}
	w.next = (w.next + 1) % len(w.points)
	w.n = min(w.n+1, len(w.points))
}

// at is the lower median of the measurements, 0 if there are none, after extrapolating each to a context of
// x tokens with the given slope, but to no less than remains of it.
func (w *window) at(x, slope float64) float64 {
	if w.n == 0 {
		return 0
	}
	var sorted [len(w.points)]float64
	for i, p := range w.points[:w.n] {
		sorted[i] = max(p.y+slope*(x-p.x), remains*p.y)
	}
	slices.Sort(sorted[:w.n])
	return sorted[(w.n-1)/2]
}

const (
	// A trend averages over about memory measurements, the mean of a group over
	// usual.
	memory, usual = 512, 256
	// doubt keeps a trend flat until there is evidence: as if sixteen
	// measurements, each 256 tokens of context from the mean, had shown no
	// growth.
	doubt = 16 * 256 * 256
)

// trend estimates the growth of a time per token of context: exponentially
// weighted least squares over measurements, each relative to the mean of its
// group. It is never negative.
type trend struct {
	groups map[int]*mean
	xx, xy float64
}

// mean is the average of a group's measurements.
type mean struct {
	n int
	point
}

func (t *trend) add(group int, x, y float64) {
	g := t.groups[group]
	switch {
	case t.groups == nil:
		t.groups = map[int]*mean{}
		fallthrough
	case g == nil: // the first step may have compiled kernels
		t.groups[group] = &mean{}
		return
	case g.n == 0:
		*g = mean{1, point{x, y}}
		return
	}
	g.n = min(g.n+1, usual)
	part := 1 / float64(g.n)
	dx, dy := x-g.x, min(y-g.y, g.y) // limits outliers
	g.x += part * dx
	g.y += part * dy
	t.xx += (1-part)*dx*dx - t.xx/memory
	t.xy += (1-part)*dx*dy - t.xy/memory
}

func (t *trend) slope() float64 { return max(0, t.xy/(t.xx+doubt)) }
