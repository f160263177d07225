package main

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// shape is what a trace is made of. Lengths are in tokens.
type shape struct {
	// groups are applications, each with a system prompt of its own; the first is
	// asked most (Zipf with exponent skew). With 0 each conversation has its own.
	groups int
	skew   float64
	system int
	// Of a conversation: turns, and what each of them adds.
	turns, question, reply int
	// think is the mean time from one turn to the next.
	think time.Duration
	// rate of requests a second, and how many there are.
	rate     float64
	requests int
}

// turn is one request of a trace.
type turn struct {
	at                  time.Duration
	group, conversation int
	// number of the turn in its conversation, from 0.
	number int
	// prompt in tokens: the system prompt and all that was said so far.
	prompt int
}

// trace makes the requests of a seed, in the order of their times. Conversations
// begin at random times (Poisson); whole ones alone are made.
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
		group := conversation
		if s.groups > 0 {
			group, _ = slices.BinarySearch(weights, rng.Float64()*sum)
		}
		for n := range s.turns {
			out = append(out, turn{at: at, group: group, conversation: conversation, number: n, prompt: s.system + s.question + n*(s.question+s.reply)})
			at += time.Duration(rng.ExpFloat64() * float64(s.think))
		}
	}
	slices.SortStableFunc(out, func(a, b turn) int { return int(a.at - b.at) })
	return out
}

// outcome is what a run of one policy came to.
type outcome struct {
	prompt, cached int             // tokens
	first          []time.Duration // to the first token, of each request
	answers        []int           // of each replica
}

// hits is how much of all prompts was remembered.
func (o outcome) hits() float64 { return float64(o.cached) / float64(o.prompt) }

// imbalance is how many requests the busiest replica had beside the average.
func (o outcome) imbalance() float64 {
	sum := 0
	for _, n := range o.answers {
		sum += n
	}
	return float64(slices.Max(o.answers)) * float64(len(o.answers)) / float64(sum)
}

// comparison is what all policies came to, in the order of policies, run by run.
type comparison struct {
	name     string
	outcomes [][]outcome
	bounds   bounds
}
