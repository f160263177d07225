package gateway

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// shape is what a trace is made of. Lengths are in tokens.
type shape struct {
	// groups are applications, each with a system prompt of its own; the first is
	// asked most (Zipf with exponent skew).
	groups int
	skew   float64
	system int
	// Of a conversation: turns, and what each of them adds.
	turns, question, reply int
	// think is the mean time from one turn to the next.
	think time.Duration
	// rate of requests per second, and their number.
	rate     float64
	requests int
}

// chats of 24 applications; the rate follows from the speed of the engines.
func chats(requests int) shape {
	return shape{groups: 24, skew: 0.9, system: 512, turns: 3, question: 96, reply: 64, think: 4 * time.Second, requests: requests}
}

// turn is one request of a trace.
type turn struct {
	at                  time.Duration
	group, conversation int
	// number of the turn in its conversation, from 0.
	number int
}

// trace makes the requests of a seed, in the order of their times. Conversations
// begin at random times (Poisson), and all of them are complete.
func (s shape) trace(seed uint64) []turn {
	rng := rand.New(rand.NewPCG(seed, 9))
	weights := make([]float64, s.groups)
	sum := 0.0
	for g := range weights {
		sum += 1 / math.Pow(float64(g+1), s.skew)
		weights[g] = sum
	}
	var out []turn
	began := 0.0
	for conversation := 0; len(out) < s.requests; conversation++ {
		began += rng.ExpFloat64() * float64(s.turns) / s.rate
		at := time.Duration(began * float64(time.Second))
		group, _ := slices.BinarySearch(weights, rng.Float64()*sum)
		for n := range s.turns {
			out = append(out, turn{at: at, group: group, conversation: conversation, number: n})
			at += time.Duration(rng.ExpFloat64() * float64(s.think))
		}
	}
	slices.SortStableFunc(out, func(a, b turn) int { return int(a.at - b.at) })
	return out
}
