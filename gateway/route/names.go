package route

import (
	"cmp"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
)

// Name is a name that clients may use.
type Name struct {
	Name  string
	Model *Model
	// Adapter of the model that the name selects; empty for the model alone.
	Adapter string
}

// names is the index of names. Every NAMESPACE/NAME, and NAMESPACE/NAME:ADAPTER, belongs to
// its own deployment, and each other name to the oldest deployment whose status claims it.
// A change costs a time for the names of its deployment, however many others there are.
type names struct {
	// found has what clients find, a *claim by its name, once public is set. Its readers take
	// no lock.
	found sync.Map
	list  listing

	// Guarded by the table's mu.
	public bool
	named  map[string]*claims
	of     map[Key]*claimant
}

// claimant is a deployment as it was indexed.
type claimant struct {
	Deployment
	// own are NAMESPACE/NAME and those with its adapters, and claimed the names of its status.
	own, claimed []claim
	// won counts claimed names by which clients find it. Without one, its own are listed.
	won int
}

// claim is one of a claimant on a name.
type claim struct {
	Name
	by *claimant
}

func newClaimant(d Deployment, m *Model) *claimant {
	c := &claimant{Deployment: d}
	c.own = []claim{{Name{c.Key.String(), m, ""}, c}}
	for adapter := range strings.SplitSeq(c.Adapters, "\n") {
		if adapter != "" {
			c.own = append(c.own, claim{Name{c.Key.String() + ":" + adapter, m, adapter}, c})
		}
	}
	for name := range strings.SplitSeq(c.Names, "\n") {
		if name != "" {
			c.claimed = append(c.claimed, claim{Name{name, m, c.adapterOf(name)}, c})
		}
	}
	return c
}

func (c *claimant) compare(o *claimant) int {
	return cmp.Or(cmp.Compare(c.Created, o.Created), strings.Compare(c.Key.String(), o.Key.String()))
}

// claims are those on one name.
type claims struct {
	owner *claim // of the deployment whose NAMESPACE/NAME it is
	// others claim the name, the oldest first.
	others []*claim

	winner *claim // the first of others, if there was no owner when it was published
	listed *claim // in the list of names, or about to be
}

func (c *claims) find(of *claimant) (at int, found bool) {
	return slices.BinarySearchFunc(c.others, of, func(o *claim, of *claimant) int { return o.by.compare(of) })
}

// first returns the claim by which clients find the name; nil without one.
func (c *claims) first() *claim {
	if c.owner == nil && len(c.others) > 0 {
		return c.others[0]
	}
	return c.owner
}

func newNames() *names {
	return &names{named: map[string]*claims{}, of: map[Key]*claimant{}}
}

// set indexes a deployment, in place of its earlier version.
func (n *names) set(d Deployment, m *Model) {
	changed := n.remove(d.Key)
	c := newClaimant(d, m)
	n.of[d.Key] = c
	for i := range c.own {
		n.at(c.own[i].Name.Name).owner = &c.own[i]
		changed = append(changed, c.own[i].Name.Name)
	}
	for i := range c.claimed {
		on := n.at(c.claimed[i].Name.Name)
		if at, found := on.find(c); !found {
			on.others = slices.Insert(on.others, at, &c.claimed[i])
		}
		changed = append(changed, c.claimed[i].Name.Name)
	}
	n.publish(changed)
}

// delete removes a deployment.
func (n *names) delete(key Key) { n.publish(n.remove(key)) }

// remove removes the claims of a deployment, and returns the names.
func (n *names) remove(key Key) (changed []string) {
	c, known := n.of[key]
	if !known {
		return nil
	}
	delete(n.of, key)
	for _, own := range c.own {
		n.at(own.Name.Name).owner = nil
		changed = append(changed, own.Name.Name)
	}
	for _, claimed := range c.claimed {
		on := n.at(claimed.Name.Name)
		if at, found := on.find(c); found {
			on.others = slices.Delete(on.others, at, at+1)
		}
		changed = append(changed, claimed.Name.Name)
	}
	return changed
}

// at returns the claims on a name.
func (n *names) at(name string) *claims {
	c := n.named[name]
	if c == nil {
		c = &claims{}
		n.named[name] = c
	}
	return c
}

// publish shows clients what became of names.
func (n *names) publish(changed []string) {
	for _, name := range changed {
		changed = append(changed, n.decide(name)...)
	}
	for _, name := range changed {
		c := n.named[name]
		if c == nil {
			continue // it is among them twice
		}
		first := c.first()
		switch {
		case first == nil:
			delete(n.named, name)
			n.found.Delete(name)
		case n.public:
			if was, _ := n.found.Load(name); was != first {
				n.found.Store(name, first)
			}
		}
		if first != nil && (!n.public || first == c.owner && first.by.won > 0) {
			first = nil
		}
		n.list.set(name, c.listed, first)
		c.listed = first
	}
}

// decide finds out who wins a name that is no deployment's own. It returns names that are
// listed, or not listed any more, for that.
func (n *names) decide(name string) (changed []string) {
	c := n.named[name]
	if c == nil {
		return nil
	}
	winner := c.first()
	if winner == c.owner {
		winner = nil
	}
	if winner == c.winner {
		return nil
	}
	count := func(of *claim, more int) {
		if of == nil {
			return
		}
		had := of.by.won > 0
		if of.by.won += more; had != (of.by.won > 0) {
			for _, own := range of.by.own {
				changed = append(changed, own.Name.Name)
			}
		}
	}
	count(c.winner, -1)
	count(winner, 1)
	c.winner = winner
	return changed
}

// publishAll shows clients all names.
func (n *names) publishAll() {
	n.public = true
	n.publish(slices.Collect(maps.Keys(n.named)))
}

// find returns what a name refers to. It needs no lock.
func (n *names) find(name string) (Name, bool) {
	v, ok := n.found.Load(name)
	if !ok {
		return Name{}, false
	}
	return v.(*claim).Name, true
}

// pageNames is how many names of a list are read at once.
const pageNames = 32

// all yields the names to list, sorted. It holds no version of the list while its caller is
// busy: a client may read a list for as long as it likes, and there may be many versions.
func (n *names) all(mu *sync.Mutex) iter.Seq[Name] {
	return func(yield func(Name) bool) {
		page, last := make([]Name, 0, pageNames), ""
		for {
			if page = n.list.after(last, page[:0], mu); len(page) == 0 {
				return
			}
			for _, one := range page {
				if !yield(one) {
					return
				}
			}
			last = page[len(page)-1].Name
		}
	}
}
