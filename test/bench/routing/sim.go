package main

import (
	"container/heap"
	"fmt"
	"time"

	"metalfleet.dev/metalfleet/gateway/pick"
	"metalfleet.dev/metalfleet/gateway/waiting"
)

const (
	// replicas of the deployment, simulated or real.
	replicas = 8
	// gateways do not know of one another's requests.
	gateways = 2
	// ahead is how many requests a gateway sends to a replica for each that runs
	// there at once, as gateway/proxy does.
	ahead = 2
)

// scenario is a trace on virtual time, and the engine that it runs on.
type scenario struct {
	name   string
	shape  shape
	engine model
	bounds bounds
}

// model is an engine as far as routing sees it. Its figures are those of an 8B
// model in 4 bits on an M4 Max, rounded.
type model struct {
	sequences int
	// prefill is in tokens a second, decode the time of a step of all answers,
	// chunk what of a prompt is computed between two of those.
	prefill float64
	decode  time.Duration
	chunk   int
	answer  int
	// block is in how many tokens prompts are remembered, blocks how many of them.
	block, blocks int
}

// scenarios are the traces: what affinity is for, and what it must not spoil.
func scenarios() []scenario {
	m := model{sequences: 8, prefill: 700, decode: 20 * time.Millisecond, chunk: 512, answer: 60, block: 256, blocks: 128}
	chats := shape{groups: 40, skew: 0.9, system: 2048, turns: 4, question: 192, reply: 128, think: 20 * time.Second, rate: 2.6, requests: 4000}
	alone := chats
	alone.groups, alone.skew, alone.system, alone.question, alone.reply = 0, 0, 0, 512, 256
	hot, fresh := chats, chats
	hot.groups, hot.rate = 1, 4
	fresh.groups, fresh.skew, fresh.turns, fresh.rate = 0, 0, 1, 1.6
	return []scenario{
		{"chats of 40 applications", chats, m, bounds{1.4, 0.8, 0.8}},
		{"one system prompt for all (KubeAI #519)", hot, m, bounds{1.04, 1, 1}},
		{"chats without a system prompt", alone, m, bounds{2, 0.9, 0.9}},
		// Where all requests are alike and nothing is remembered, taking turns is best.
		{"nothing shared", fresh, m, bounds{0, 1.1, 1.25}},
	}
}

func (s scenario) compare(seeds int) (comparison, error) {
	c := comparison{name: "simulated, " + s.name, bounds: s.bounds}
	for _, p := range policies() {
		var runs []outcome
		for seed := range seeds {
			o, err := s.run(p.pick, uint64(seed+1))
			if err != nil {
				return c, fmt.Errorf("%s, seed %d: %w", p.name, seed+1, err)
			}
			runs = append(runs, o)
		}
		c.outcomes = append(c.outcomes, runs)
	}
	return c, nil
}

// world is a run on virtual time.
type world struct {
	model
	pick  pick.Policy
	now   time.Duration
	next  events
	born  int
	front [gateways]*front
	all   [replicas]*replica
	out   outcome
	left  int
}

// front is what one gateway knows: what it sent where, and who waits for it.
type front struct {
	inFlight [replicas]int
	total    [replicas]uint64
	prefixes map[uint64]int
	room     *waiting.Room
	waits    map[*waiting.Waiter]*job
	turn     uint64
	begun    pick.Recent
}

// job is one request on its way.
type job struct {
	turn
	gateway, replica int
	prefix           pick.Prefix
	blocks           []key
	left, answer     int // tokens to compute, and to say
}

// key names a block: a part of a system prompt, or of one conversation.
type key struct {
	conversation bool
	of, at       int
}

// replica is one engine.
type replica struct {
	queue, prompts, answers []*job
	known                   memory
	working                 bool
}

type event struct {
	at    time.Duration
	order int
	do    func()
}

type events []event

func (e events) Len() int      { return len(e) }
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].order < e[j].order
}
func (e *events) Push(x any) { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

func (w *world) at(when time.Duration, do func()) {
	w.born++
	heap.Push(&w.next, event{when, w.born, do})
}

// run plays one trace under one policy.
func (s scenario) run(choose pick.Policy, seed uint64) (outcome, error) {
	trace := s.shape.trace(seed)
	w := &world{model: s.engine, pick: choose, left: len(trace)}
	w.out.answers = make([]int, replicas)
	for i := range w.front {
		w.front[i] = &front{prefixes: map[uint64]int{}, waits: map[*waiting.Waiter]*job{},
			room: waiting.New(waiting.Limits{Count: len(trace), Bytes: 1 << 40, Age: 24 * time.Hour})}
	}
	for i := range w.all {
		w.all[i] = &replica{known: memory{most: s.engine.blocks}}
	}
	for i, t := range trace {
		j := &job{turn: t, gateway: i % gateways, blocks: s.blocksOf(t), answer: s.engine.answer,
			prefix: pick.Prefix{Shared: pick.Hash(text("system", t.group)), Own: pick.Hash(text("conversation", t.conversation))}}
		w.at(t.at, func() { w.arrive(j) })
	}
	for len(w.next) > 0 {
		e := heap.Pop(&w.next).(event)
		w.now = e.at
		e.do()
	}
	if w.left > 0 {
		return w.out, fmt.Errorf("%d of %d requests were never answered", w.left, len(trace))
	}
	return w.out, nil
}

func text(of string, n int) []byte { return fmt.Appendf(nil, "%s %d", of, n) }

// blocksOf a prompt: whole ones alone are remembered.
func (s scenario) blocksOf(t turn) []key {
	var out []key
	for at := range t.prompt / s.engine.block {
		k := key{of: t.group, at: at}
		if (at+1)*s.engine.block > s.shape.system {
			k = key{conversation: true, of: t.conversation, at: at}
		}
		out = append(out, k)
	}
	return out
}

// clock is virtual time as the waiting room wants it.
func (w *world) clock() time.Time { return time.Unix(0, 0).Add(w.now) }

func (w *world) arrive(j *job) {
	f := w.front[j.gateway]
	if w.send(f, j) {
		return
	}
	waiter := &waiting.Waiter{Model: "m"}
	f.waits[waiter] = j
	if _, err := f.room.Enter(waiter, w.clock()); err != nil {
		delete(f.waits, waiter) // it stays unanswered, which run refuses
	}
}

// send lets a gateway choose; false where every replica is full.
func (w *world) send(f *front, j *job) bool {
	candidates := make([]pick.Candidate, replicas)
	for i := range candidates {
		candidates[i] = pick.Candidate{ID: pick.Hash(text("replica", i)), InFlight: f.inFlight[i], Total: f.total[i],
			Most: ahead * w.sequences, Slots: w.sequences}
	}
	p := j.prefix
	p.InFlight, p.Known = f.prefixes[p.Shared], f.begun.Has(p.Shared)
	i, ok := w.pick(candidates, p, f.turn)
	if !ok {
		return false
	}
	f.turn++
	f.begun.Add(p.Shared)
	f.inFlight[i]++
	f.total[i]++
	f.prefixes[p.Shared]++
	j.replica = i
	w.out.answers[i]++
	w.all[i].queue = append(w.all[i].queue, j)
	w.work(w.all[i])
	return true
}

// release gives a place back, and lets those who wait have it.
func (w *world) release(j *job) {
	f := w.front[j.gateway]
	f.inFlight[j.replica]--
	f.prefixes[j.prefix.Shared]--
	w.left--
	var next *job
	for f.room.Next("m", w.clock(), func(o *waiting.Waiter) bool {
		next = f.waits[o]
		return w.send(f, next)
	}) != nil {
		for o, j := range f.waits {
			if j == next {
				delete(f.waits, o)
			}
		}
	}
}

// work does one step of an engine, unless it does one already: a chunk of the
// first prompt, and a token of every answer.
func (w *world) work(r *replica) {
	if r.working {
		return
	}
	for len(r.queue) > 0 && len(r.prompts)+len(r.answers) < w.sequences {
		j := r.queue[0]
		r.queue = r.queue[1:]
		hit := min(r.known.match(j.blocks)*w.block, j.prompt-1)
		j.left = j.prompt - hit
		w.out.prompt, w.out.cached = w.out.prompt+j.prompt, w.out.cached+hit
		r.prompts = append(r.prompts, j)
	}
	took, computed := time.Duration(0), 0
	if len(r.prompts) > 0 {
		computed = min(r.prompts[0].left, w.chunk)
		took += time.Duration(float64(computed) / w.prefill * float64(time.Second))
	}
	if len(r.answers) > 0 {
		took += w.decode
	}
	if took == 0 {
		return
	}
	r.working = true
	said := len(r.answers)
	w.at(w.now+took, func() { w.done(r, computed, said) })
}

// done ends a step.
func (w *world) done(r *replica, computed, said int) {
	r.working = false
	still := r.answers[:0]
	for i, j := range r.answers {
		if i < said {
			j.answer--
		}
		if j.answer > 0 {
			still = append(still, j)
			continue
		}
		w.release(j)
	}
	r.answers = still
	if computed > 0 {
		j := r.prompts[0]
		if j.left -= computed; j.left == 0 {
			r.prompts = r.prompts[1:]
			r.known.add(j.blocks)
			w.out.first = append(w.out.first, w.now-j.at)
			r.answers = append(r.answers, j)
		}
	}
	w.work(r)
}
