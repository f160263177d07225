package dispatch

import (
	"slices"
	"time"

	"metalfleet.dev/metalfleet/gateway/health"
	"metalfleet.dev/metalfleet/gateway/route"
)

// openings are the replicas of a deployment that have room for another request. They are
// computed once for all requests that wait: a client chooses the Mac and the adapter of each of
// its requests, and each combination would cost a look at every replica.
type openings struct {
	all   []opening
	byMac map[string][]opening
	size  int // slots of all replicas of the deployment
	// guestsOnly: all of them have room only for guests.
	guestsOnly bool
	// forSome: a replica is ejected, or proving, for one tenant.
	forSome bool
}

// opening is one replica with room.
type opening struct {
	at   *route.Endpoint
	load *replicaLoad
	// guestsOnly: it has room only for tenants with less than their part of it.
	guestsOnly bool
}

// openings returns the replicas of a model that have room.
func (s *slots) openings(m *route.Model, now time.Time) *openings {
	endpoints := m.Endpoints()
	out := &openings{byMac: map[string][]opening{}, size: s.size(endpoints), guestsOnly: true}
	loads := s.loads(endpoints, now)
	usual := s.usualRejections(endpoints, loads)
	if s.outliers.Any() {
		out.forSome = slices.ContainsFunc(s.outliers.Standings(uidsOf(endpoints), now), health.Standing.ForSome)
	}
	for i, l := range loads {
		e, rejected := &endpoints[i], l.more(usual)
		hasRoom := func(guest bool) bool {
			limit := s.limit(*e, l, rejected, guest)
			return limit == 0 || l.inFlight+rejected < limit
		}
		if !hasRoom(true) || !s.canReach(*e) {
			continue
		}
		one := opening{at: e, load: l, guestsOnly: !hasRoom(false)}
		out.guestsOnly = out.guestsOnly && one.guestsOnly
		out.all = append(out.all, one)
		out.byMac[e.Mac] = append(out.byMac[e.Mac], one)
	}
	return out
}

// mayFit reports whether fit is worth a call: most requests that wait do not pass it.
func (o *openings) mayFit(r *Request, guest bool) bool {
	return (guest || !o.guestsOnly) && (r.OnlyMac == "" || len(o.byMac[r.OnlyMac]) > 0)
}

// fit reports whether a request may use one of them.
func (o *openings) fit(r *Request, guest bool) bool {
	list := o.all
	if r.OnlyMac != "" {
		list = o.byMac[r.OnlyMac]
	}
	return slices.ContainsFunc(list, func(one opening) bool {
		return (!one.guestsOnly || guest && one.load.mayBeGuest(r.Owner, *one.at)) && !r.excluded(*one.at)
	})
}
