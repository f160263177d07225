//go:build mlx

package mlx

// stretch is a segment of a step in memory: tokens of a slot from start on, of
// which the last sees seen tokens.
type stretch struct {
	slab                      *slab
	slot, start, length, seen int
	// ragged: the kernel of ragged.h computes its attention.
	ragged bool
	// runs are positions of tokens that see one another, which the slot has at shift.
	runs  [][2]int
	shift int
	// first is the token of the slot before which none is seen.
	first int
}

// chunks cuts a stretch at the borders of chunks of n positions; 0 leaves it whole.
func (g stretch) chunks(n int) []stretch {
	if n == 0 {
		return []stretch{g}
	}
	var out []stretch
	for from, end := g.start-g.shift, g.start-g.shift+g.length; from < end; {
		begin := from / n * n
		part := g
		part.start, part.length = from+g.shift, min(begin+n, end)-from
		part.seen, part.first = from+part.length-begin, begin+g.shift
		out = append(out, part)
		from += part.length
	}
	return out
}

// In the kernel of ragged.h, one thread block reads the whole context of a
// segment for a head of keys. It runs at memory speed if there are many
// segments; a few long ones leave the device idle, where the framework's kernel
// for one query does not. So it is used up to longestRagged tokens of context
// for one query or for segments that the framework attends together, and up to
// that many for each if the framework would attend them one by one. Segments
// have up to mostRagged tokens: longer ones fill the device.
const (
	mostRagged    = 64
	longestRagged = 2048
)

// answers are those of a step in one slab, one token each.
type answers struct {
	number, longest, first, last, start int
	uneven                              bool
}

// chooseRagged marks the segments of a step that go to the kernel of ragged.h,
// and counts them: all that it takes, so that they need not be joined to others,
// unless one call of the framework does for the whole step.
func chooseRagged(all []stretch) (chosen int64) {
	slabs := make(map[*slab]*answers)
	pieces := false
	for _, g := range all {
		if g.length > 1 {
			pieces = true
			continue
		}
		in := slabs[g.slab]
		if in == nil {
			in = &answers{start: g.start, first: g.slot, last: g.slot}
			slabs[g.slab] = in
		}
		in.number++
		in.longest = max(in.longest, g.seen)
		in.first, in.last = min(in.first, g.slot), max(in.last, g.slot)
		in.uneven = in.uneven || g.start != in.start
	}
	if len(slabs) == 1 && !pieces && slabs[all[0].slab].oneCall() {
		return 0
	}
	for i := range all {
		g := &all[i]
		if g.ragged = g.length <= mostRagged && (g.length > 1 || slabs[g.slab].suit()); g.ragged {
			chosen++
		}
	}
	return chosen
}

// oneCall says whether the framework attends them by one call: side by side and
// equally long.
func (a *answers) oneCall() bool { return !a.uneven && a.last-a.first+1 == a.number }

// suit says whether the kernel attends them sooner than the framework.
func (a *answers) suit() bool {
	if a.uneven {
		return a.longest <= longestRagged*a.number
	}
	return a.longest <= longestRagged
}
