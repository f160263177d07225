//go:build !race

package pick_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"metalfleet.dev/metalfleet/gateway/pick"
)

func hash(text string) uint64 { return pick.Hash([]byte(text)) }

// replicas returns idle candidates with distinct IDs.
func replicas(n, slots int) []pick.Candidate {
	out := make([]pick.Candidate, n)
	for i := range out {
		out[i] = pick.Candidate{ID: hash(fmt.Sprint("replica-", i)), Slots: slots}
	}
	return out
}

func prefix(group, conversation int) pick.Prefix {
	shared := hash(fmt.Sprint("system ", group))
	return pick.Prefix{Known: true, Shared: shared, Own: hash(fmt.Sprint("system ", group, " user ", conversation))}
}

func TestAHashIsTheSameForeverAndTellsPartsApart(t *testing.T) {
	if got := pick.Hash([]byte("You are a helpful assistant."), []byte("Hi")); got != 0x43679ab00935ae08 {
		t.Errorf("hash %#x", got)
	}
	if pick.Hash([]byte("ab"), []byte("c")) == pick.Hash([]byte("a"), []byte("bc")) || pick.Hash() == 0 {
		t.Error("texts that were cut elsewhere have one hash")
	}
}

// TestConversationsStayAndGatewaysAgree also checks that every replica is the home of
// equally many prefixes (KubeAI #447: few virtual nodes).
func TestConversationsStayAndGatewaysAgree(t *testing.T) {
	c := replicas(8, 8)
	homes := map[int]int{}
	counts := make([]int, len(c))
	for group := range 4000 {
		p := prefix(group, 1)
		i, ok := pick.Choose(c, p, uint64(group))
		if !ok {
			t.Fatal("no choice")
		}
		homes[group] = i
		counts[i]++
		// At another gateway, the totals and the order of the replicas differ.
		other := make([]pick.Candidate, len(c))
		for j := range c {
			other[j] = c[len(c)-1-j]
			other[j].Total = uint64(j)
		}
		if j, _ := pick.Choose(other, p, 7); other[j].ID != c[i].ID {
			t.Fatalf("group %d: two gateways disagree", group)
		}
	}
	for i, n := range counts {
		if n < 400 || n > 600 {
			t.Errorf("replica %d is the home of %d of 4000", i, n)
		}
	}
	// One is removed, and only its own prefixes move.
	without := c[:7]
	for group, i := range homes {
		if j, _ := pick.Choose(without, prefix(group, 1), 0); i < 7 && j != i {
			t.Fatalf("group %d moved from %d to %d though both are there", group, i, j)
		}
	}
}

func TestABusyHomeIsPassedOver(t *testing.T) {
	c := replicas(4, 8)
	p := prefix(1, 1)
	first, _ := pick.Choose(c, p, 0)
	c[first].InFlight = 1
	if i, _ := pick.Choose(c, p, 0); i != first {
		t.Error("one request is little for a replica that runs eight at once")
	}
	c[first].InFlight = 2
	second, _ := pick.Choose(c, p, 0)
	if second == first {
		t.Error("two more than anybody has are much")
	}
	for i := range c {
		if c[i].InFlight = 4; i == first {
			c[i].InFlight = 7
		}
	}
	if i, _ := pick.Choose(c, p, 0); i == first {
		t.Error("half as many again as the average is the bound")
	}
	c[first].InFlight = 4
	if i, _ := pick.Choose(c, p, 0); i != first {
		t.Error("as many as the others have is not much")
	}
	for what, change := range map[string]func(*pick.Candidate){
		"excluded": func(c *pick.Candidate) { c.Excluded = true },
		"retiring": func(c *pick.Candidate) { c.Retiring = true },
		"full":     func(c *pick.Candidate) { c.Max = 4 },
		"suspect":  func(c *pick.Candidate) { c.Suspect = true },
		"cold":     func(c *pick.Candidate) { c.Cold = true },
	} {
		d := append([]pick.Candidate(nil), c...)
		change(&d[first])
		if i, ok := pick.Choose(d, p, 0); !ok || i == first {
			t.Errorf("%s: chosen, %v", what, ok)
		}
	}
	// Replicas that run one request at a time: the second request is sent to another one.
	single := replicas(2, 1)
	i, _ := pick.Choose(single, p, 0)
	single[i].InFlight = 1
	if j, _ := pick.Choose(single, p, 0); j == i {
		t.Error("a request waits though another replica is free")
	}
	if _, ok := pick.Choose(replicas(0, 1), p, 0); ok {
		t.Error("no replica was chosen")
	}
}

// TestAHotPrefixUsesTheWholeFleet (KubeAI #519, #528; AIBrix #842): the load is within half
// of what least-load achieves, and most conversations still find their home.
func TestAHotPrefixUsesTheWholeFleet(t *testing.T) {
	const conversations = 80
	rng := rand.New(rand.NewPCG(5, 5))
	where := map[int]uint64{}
	stayed := 0
	for round := range 2 {
		c := replicas(8, 16)
		for _, n := range rng.Perm(conversations) {
			p := prefix(1, n)
			p.InFlight = conversations
			i, ok := pick.Choose(c, p, uint64(n))
			if !ok {
				t.Fatal("no choice")
			}
			c[i].InFlight++
			if round > 0 && where[n] == c[i].ID {
				stayed++
			}
			where[n] = c[i].ID
		}
		for i := range c {
			if c[i].InFlight < 5 || c[i].InFlight > 16 { // 1.5 x 80/8, and the new request
				t.Errorf("round %d: replica %d has %d of %d", round, i, c[i].InFlight, conversations)
			}
		}
	}
	if stayed < conversations/2 { // an eighth would by chance
		t.Errorf("%d of %d conversations found their home", stayed, conversations)
	}
	// With few requests, one replica caches what they share.
	c := replicas(8, 16)
	homes := map[int]bool{}
	for n := range conversations {
		i, _ := pick.Choose(c, prefix(1, n), 0)
		homes[i] = true
	}
	if len(homes) != 1 {
		t.Errorf("one after the other they went to %d replicas", len(homes))
	}
}

// TestRandomLoadsAreBounded: for any replicas and prefixes, the choice is allowed, and
// never much busier than the average while another one is not.
func TestRandomLoadsAreBounded(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 3))
		c := replicas(1+rng.IntN(9), rng.IntN(9))
		inFlight := map[uint64]int{}
		type running struct {
			at     int
			shared uint64
		}
		var all []running
		for step := range 200 {
			for i := range c {
				c[i].Excluded, c[i].Suspect, c[i].Cold = rng.IntN(9) == 0, rng.IntN(9) == 0, rng.IntN(9) == 0
				c[i].Max = rng.IntN(3) * 8
			}
			p := prefix(rng.IntN(3), rng.IntN(20))
			p.InFlight = inFlight[p.Shared]
			i, ok := pick.Choose(c, p, rng.Uint64())
			best, any := pick.Best(c, 0)
			if ok != any {
				t.Fatalf("seed %d step %d: chosen %v, and there is one: %v", seed, step, ok, any)
			}
			if ok {
				total, trusted := 0, 0
				for _, one := range c {
					if !one.Suspect {
						total += one.InFlight
						trusted++
					}
				}
				switch one := c[i]; {
				case one.Excluded, one.Max > 0 && one.InFlight >= one.Max, one.Suspect && !c[best].Suspect:
					t.Fatalf("seed %d step %d: chose %+v", seed, step, one)
				case !one.Suspect && one.InFlight > c[best].InFlight && one.InFlight >= max(2, int(1.5*float64(total+1)/float64(trusted))) && !c[best].Cold:
					t.Fatalf("seed %d step %d: %+v is busier than it may be, and %+v is there", seed, step, one, c[best])
				}
				c[i].InFlight++
				c[i].Total++
				inFlight[p.Shared]++
				all = append(all, running{at: i, shared: p.Shared})
			}
			for len(all) > 0 && rng.IntN(3) == 0 {
				at := rng.IntN(len(all))
				c[all[at].at].InFlight--
				inFlight[all[at].shared]--
				all = append(all[:at], all[at+1:]...)
			}
		}
	}
}

// TestConversationsOfOnePromptFindTheirHomes: concurrent conversations have more homes than
// they fill, or each would be sent wherever a slot is free.
func TestConversationsOfOnePromptFindTheirHomes(t *testing.T) {
	const conversations = 200
	rng := rand.New(rand.NewPCG(7, 7))
	c := replicas(8, 8)
	where := map[int]int{}
	var running []int // replicas
	returned, stayed := 0, 0
	for range 4000 {
		if len(running) == 8 { // one per replica, on average
			at := rng.IntN(len(running))
			c[running[at]].InFlight--
			running = append(running[:at], running[at+1:]...)
		}
		n := rng.IntN(conversations)
		p := prefix(1, n)
		p.InFlight = len(running)
		i, ok := pick.Choose(c, p, 0)
		if !ok {
			t.Fatal("no choice")
		}
		if last, known := where[n]; known {
			returned++
			if last == i {
				stayed++
			}
		}
		where[n] = i
		c[i].InFlight++
		running = append(running, i)
	}
	if stayed < returned*6/10 {
		t.Errorf("%d of %d came back to where they had been", stayed, returned)
	}
}

// A new prefix is not cached anywhere: it starts at its home if that is idle, and is sent
// to the least busy replica otherwise.
func TestABeginningThatIsNewWaitsNowhere(t *testing.T) {
	c := replicas(4, 8)
	known := prefix(1, 1)
	fresh := known
	fresh.Known = false
	first, _ := pick.Choose(c, known, 0)
	for turn := range uint64(4) {
		if i, _ := pick.Choose(c, fresh, turn); i != first {
			t.Fatalf("turn %d: its idle home is %d, it went to %d", turn, first, i)
		}
	}
	for i := range c {
		c[i].InFlight = 1
	}
	c[(first+1)%4].InFlight = 0
	if i, _ := pick.Choose(c, known, 0); i != first {
		t.Error("one request at a home that remembers it is little")
	}
	if i, _ := pick.Choose(c, fresh, 0); i != (first+1)%4 {
		t.Errorf("it went to %d, and %d is idle", i, (first+1)%4)
	}
	c[first] = pick.Candidate{ID: c[first].ID, Slots: 8, Excluded: true}
	if i, ok := pick.Choose(c, fresh, 0); !ok || i == first {
		t.Errorf("chosen %d, %v: its home failed it", i, ok)
	}
}
