package intake

import (
	"container/list"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// TestTheConnectionToCloseIsThatOfALookAtAll: random histories against a choice that looks at all
// connections.
func TestTheConnectionToCloseIsThatOfALookAtAll(t *testing.T) {
	for seed := range uint64(40) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1))
			l := &Listener{Total: 24, PerAddress: 8, Bodies: &Bodies{Keyed: seed%2 == 0}}
			var all []*Conn
			for range 400 {
				time.Sleep(stallTime/stallChecks + time.Duration(random.IntN(int(stallTime/8))))
				c, name := newConn(nil, l), fmt.Sprint(min(random.IntN(12), random.IntN(12)))
				want := choices(l, name)
				old, why := l.enter(c, name)
				if old == nil && len(want) > 0 || old != nil && !want[old] {
					t.Fatalf("seed %d: another connection of %s closes %+v, want one of %d", seed, name, old, len(want))
				}
				if why == "" || why == replaced {
					all = append(all, c)
				}
				for range 3 {
					change(random, all[random.IntN(len(all))])
				}
			}
			for _, c := range all {
				l.leave(c)
			}
			if n := l.idle.Len() + l.young.Len() + l.kept.Len() + len(l.heavy.in) + len(l.silent.in) + len(l.crowds.in) + len(l.lingering.in) + l.linger + l.count; n > 0 {
				t.Errorf("seed %d: %d places are taken after all connections have ended", seed, n)
			}
		})
	}
}

// change is what a client does.
func change(random *rand.Rand, c *Conn) {
	now := time.Now()
	switch a := c.address; random.IntN(9) {
	case 0, 1:
		c.move(&a.serving)
	case 2:
		c.wait()
	case 3:
		c.move(&a.closing)
	case 4:
		if !c.gone {
			c.know()
		}
	case 7:
		c.sends()
	case 5, 6:
		if c.in == &a.serving {
			c.reads.left.CompareAndSwap(nil, &now)
		}
	default:
		c.reads.left.Store(nil)
	}
}

// choices are the connections that may be closed for another one of an address.
func choices(l *Listener, name string) map[*Conn]bool {
	mine := 0
	if a := l.addresses[name]; a != nil {
		if mine = a.count; mine >= l.PerAddress {
			return sacrifices(l, a)
		}
	}
	if l.count < l.Total {
		return nil
	}
	idle, kept, silent, young := lookAtAll(l)
	heavy, most := map[*Conn]bool{}, mine
	for _, a := range l.addresses {
		if some := sacrifices(l, a); len(some) > 0 && a.count > mine && a.count >= most {
			if a.count > most {
				most, heavy = a.count, map[*Conn]bool{}
			}
			maps.Copy(heavy, some)
		}
	}
	switch {
	case len(idle) > 0:
		return idle
	case len(silent) > 0:
		return silent
	case len(young) > l.Total/strangerShare:
		return firstYoung(l, young)
	case len(heavy) > 0:
		return heavy
	}
	var own map[*Conn]bool
	if a := l.addresses[name]; a != nil {
		own = sacrifices(l, a)
	}
	begun := len(own) == 0
	for c := range own {
		begun = begun || (c.in == &c.address.fresh || c.in == &c.address.sending) && time.Since(c.entered) < strangerTime
	}
	if begun && len(kept) > 0 {
		return kept
	}
	return own
}

// firstYoung are the connections of which any may give way first, of those that may still send a key.
func firstYoung(l *Listener, young []*Conn) map[*Conn]bool {
	slices.SortFunc(young, func(a, b *Conn) int { return a.entered.Compare(b.entered) })
	of, most := map[*address][]*Conn{}, 0
	for _, c := range young {
		of[c.address] = append(of[c.address], c)
		most = max(most, len(of[c.address]))
	}
	if most <= max(few, l.Total/crowdShare) {
		return map[*Conn]bool{young[0]: true}
	}
	out := map[*Conn]bool{}
	for _, all := range of {
		if len(all) == most {
			out[all[0]] = true
		}
	}
	return out
}

// lookAtAll returns the connections that idle, those without a key where clients need one apart from the
// others, the silent ones of the addresses with the most, and those that may still send a key.
func lookAtAll(l *Listener) (idle, kept, silent map[*Conn]bool, young []*Conn) {
	idle, kept, silent = map[*Conn]bool{}, map[*Conn]bool{}, map[*Conn]bool{}
	most := 1
	for _, a := range l.addresses {
		for _, in := range []*list.List{&a.closing, &a.used, &a.known} {
			for _, c := range connsOf(in) {
				if l.Bodies.Keyed && !c.known.Load() {
					idle[c] = true
				} else {
					kept[c] = true
				}
			}
		}
		n := 0
		var first *Conn
		for _, c := range connsOf(&a.fresh) {
			switch {
			case !l.Bodies.Keyed:
			case time.Since(c.entered) < strangerTime:
				young = append(young, c)
			default:
				if n++; first == nil {
					first = c
				}
			}
		}
		if n > most {
			most, silent = n, map[*Conn]bool{}
		}
		if n == most {
			silent[first] = true
		}
	}
	return idle, kept, silent, young
}

// sacrifices are the connections of an address of which any may give way first.
func sacrifices(l *Listener, a *address) map[*Conn]bool {
	latest, late := stallTime, map[*Conn]bool{}
	for _, c := range connsOf(&a.serving) {
		if by := c.reads.late(time.Now()); by > latest {
			latest, late = by, map[*Conn]bool{c: true}
		} else if by == latest {
			late[c] = true
		}
	}
	if len(late) > 0 {
		return late
	}
	old := func(in *list.List) []*Conn {
		return slices.DeleteFunc(connsOf(in), func(c *Conn) bool { return time.Since(c.entered) < strangerTime })
	}
	idle, crowd := old(&a.used), []*Conn(nil)
	if l.Bodies.Keyed {
		idle = connsOf(&a.used)
	}
	if fresh := connsOf(&a.fresh); len(fresh) > l.PerAddress/strangerShare {
		crowd = fresh
	}
	for _, some := range [][]*Conn{connsOf(&a.closing), old(&a.fresh), idle, crowd, connsOf(&a.used), connsOf(&a.known), connsOf(&a.fresh), connsOf(&a.sending)} {
		if len(some) > 0 {
			return map[*Conn]bool{some[0]: true}
		}
	}
	return nil
}

func connsOf(in *list.List) (out []*Conn) {
	for at := in.Front(); at != nil; at = at.Next() {
		out = append(out, at.Value.(*Conn))
	}
	return out
}

// TestTheBodyToInterruptIsThatOfALookAtAll: random histories against a choice that looks at all owners.
func TestTheBodyToInterruptIsThatOfALookAtAll(t *testing.T) {
	for seed := range uint64(40) {
		random := rand.New(rand.NewPCG(seed, 1))
		r := &Bodies{}
		var all []*body
		for range 400 {
			b := r.begin(fmt.Sprint(random.IntN(8)), random.IntN(2) == 0, func() {})
			b.count(random.Int64N(1 << 40))
			asks := all
			if all = append(all, b); len(asks) == 0 {
				continue
			}
			one := asks[random.IntN(len(asks))]
			switch random.IntN(4) {
			case 0:
				one.arrived()
			case 1:
				one.stranger = false
				r.rank(one.owner)
			}
			size := one.bytes + random.Int64N(1<<40)
			want := interrupted(r, one, size)
			if ok := r.makeRoom(one, size); ok != (want != nil) || ok && !want.crowded {
				t.Fatalf("seed %d: interrupted another than %+v", seed, want)
			}
			for len(all) > 24 || len(all) > 0 && random.IntN(4) == 0 {
				at := random.IntN(len(all))
				all[at].end()
				all = slices.Delete(all, at, at+1)
			}
			all = slices.DeleteFunc(all, func(b *body) bool { return b.crowded && b.end() })
		}
		for _, b := range all {
			b.end()
		}
		if n := len(r.heavy.in) + len(r.strange.in) + len(r.owners); n > 0 {
			t.Errorf("seed %d: %d places are taken after all bodies have ended", seed, n)
		}
	}
}

// interrupted is the body that gives way to another one.
func interrupted(r *Bodies, asks *body, size int64) *body {
	mine := asks.owner.bytes - asks.bytes + size
	var most, stranger *owner
	for _, o := range r.owners {
		if o.arriving.Len() == 0 {
			continue
		}
		first := o.arriving.Front().Value.(*body)
		if first.stranger && o.bytes > 0 && (stranger == nil || o.bytes > stranger.bytes) {
			stranger = o
		}
		if (o == asks.owner || o.bytes > mine) && (first.stranger || !asks.stranger) && (most == nil || o.bytes > most.bytes) {
			most = o
		}
	}
	if stranger != nil && !asks.stranger {
		most = stranger
	}
	if most == nil {
		return nil
	}
	first := most.arriving.Front()
	if first == asks.at {
		if first = first.Next(); first == nil {
			return nil
		}
	}
	return first.Value.(*body)
}
