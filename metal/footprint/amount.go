package footprint

import (
	"fmt"
	"math"

	"metalfleet.dev/metalfleet/api/model"
)

// most is the largest amount that counts as one: sums of a few stay below 63
// bits.
const most = math.MaxInt64 / 16

// amount is a sum of products that remembers when it grew too large to be
// meant. Headers are not to be trusted with a wrap-around.
type amount struct {
	bytes int64
	over  bool
}

// add adds the product of factors, none of which may be negative.
func (a *amount) add(factors ...int64) {
	p := int64(1)
	for _, f := range factors {
		if f == 0 {
			return
		}
		if f < 0 || p > most/f {
			a.over = true
			return
		}
		p *= f
	}
	if a.bytes > most-p {
		a.over = true
		return
	}
	a.bytes += p
}

// product is one product as an amount.
func product(factors ...int64) amount {
	var a amount
	a.add(factors...)
	return a
}

// check names what is wrong where one of the amounts grew too large.
func check(what string, tokens int64, amounts ...amount) error {
	for _, a := range amounts {
		if a.over {
			return fmt.Errorf("%w: the memory of %s of %d tokens exceeds 63 bits: the dimensions in the file header cannot be right", model.ErrIncomplete, what, tokens)
		}
	}
	return nil
}

// roundUp is the least multiple of unit that is not less than n; unit 0 or 1
// leaves it.
func roundUp(n, unit int64) int64 {
	if unit <= 1 || n > most {
		return n
	}
	return (n + unit - 1) / unit * unit
}
