package sample

import (
	"math"
	"slices"
)

// keyOf maps logits to numbers that rise as the logits fall. Both zeros have one key; there
// is none for what is not a number.
func keyOf(logit float32) uint32 {
	b := math.Float32bits(logit)
	switch {
	case logit == 0:
		b = 1 << 31
	case b>>31 == 0:
		b |= 1 << 31
	default:
		b = ^b
	}
	return ^b
}

// logitOf is the logit of a key.
func logitOf(key uint32) float32 {
	b := ^key
	if b>>31 == 1 {
		return math.Float32frombits(b &^ (1 << 31))
	}
	return math.Float32frombits(^b)
}

const (
	// fewKeys are sorted by comparing them: counting digits would take longer.
	fewKeys = 256
	// keyDigits of digitBits make a key.
	keyDigits, digitBits = 3, 11
	digitValues          = 1 << digitBits
)

// ordered sorts keys, as many as a vocabulary has, in a time that no values of theirs make
// longer: one digit after the other, each by counting. spare has room for as many.
func ordered(keys, spare []uint32) []uint32 {
	if len(keys) < fewKeys {
		slices.Sort(keys)
		return keys
	}
	var counts [keyDigits][digitValues]int32
	for _, k := range keys {
		for d := range counts {
			counts[d][digit(k, d)]++
		}
	}
	for d := range counts {
		count := &counts[d]
		if int(count[digit(keys[0], d)]) == len(keys) { // all have this one
			continue
		}
		at := int32(0)
		for i, n := range count {
			count[i], at = at, at+n
		}
		out := spare[:len(keys)]
		for _, k := range keys {
			to := &count[digit(k, d)]
			out[*to] = k
			*to++
		}
		keys, spare = out, keys
	}
	return keys
}

// nthOf returns the n-th of the keys in their order, and how many of the first n are equal to
// it. It changes the keys. Each digit leaves those to look at that share it.
func nthOf(keys []uint32, n int) (key uint32, equal int) {
	for d := keyDigits - 1; d >= 0 && len(keys) > 1; d-- {
		var count [digitValues]int32
		for _, k := range keys {
			count[digit(k, d)]++
		}
		v := uint32(0)
		for ; n > int(count[v]); v++ {
			n -= int(count[v])
		}
		kept := keys[:0]
		for _, k := range keys {
			if digit(k, d) == v {
				kept = append(kept, k)
			}
		}
		keys = kept
	}
	return keys[0], n
}

func digit(key uint32, d int) uint32 { return key >> (d * digitBits) % digitValues }
