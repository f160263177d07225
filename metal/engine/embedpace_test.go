//go:build !race

package engine

import (
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/metal/batch"
	"metalfleet.dev/metalfleet/metal/ref"
	"metalfleet.dev/metalfleet/metal/tensor"
)

// wideChunks is a back end that takes as many tokens at once as Metal does.
type wideChunks struct{ tensor.Backend }

func (wideChunks) Chunk() int { return 512 }

// simulated computes texts on a simulated device, which reads all weights for a pass.
type simulated struct {
	*passCounter
	weights, token, double float64 // seconds, seconds, and tokens of context with which a token takes twice as long
	clock                  float64
	// spent is how many seconds the last pass took.
	spent float64
	// last is the tenant whose input was its first.
	last string
}

// devices are a model of 0.6B on an M4, and of 8B on an M2.
var devices = map[string]simulated{
	"0.6B": {weights: 0.005, token: 0.0005, double: 3800},
	"8B":   {weights: 0.045, token: 0.0065, double: 9000},
}

func (d simulated) on(t *testing.T, context int) *simulated {
	t.Helper()
	d.passCounter = countPassesOf(t, wideChunks{ref.New(ref.Options{})}, context)(4 * context)
	d.pace.Slice = textSlice
	d.passCounter.took = func(pass []passInput, tokens, depths []int) {
		d.spent, d.last = d.weights, pass[0].of.tenant
		for i, n := range tokens {
			d.spent += d.token * float64(n) * (1 + float64(depths[i])/d.double)
		}
		d.clock += d.spent
		if took := time.Duration(1e9 * d.spent); d.long(pass[0]) {
			d.pace.tookPart(took, tokens[0], depths[0])
		} else {
			d.pace.took(took, pass)
		}
	}
	return &d
}

// TestAttackTextsThatFillEachPass: a query of another tenant waited for two passes full of texts, or for a part of a
// long one, for up to a hundred times as long as alone.
func TestAttackTextsThatFillEachPass(t *testing.T) {
	for name, device := range devices {
		for _, text := range []int{110, 300, 512, 4000, 30_000} {
			d := device.on(t, 32_768)
			for range 20 {
				d.ask("hog", text)
			}
			var query *embedding
			came, took := 0.0, []float64(nil)
			for n := range 1000 {
				before := d.clock
				for _, r := range d.step() {
					if r.tenant == "hog" {
						d.ask("hog", text)
					} else {
						took = append(took, d.clock-came)
					}
					if r == query {
						query = nil
					}
				}
				if query == nil && n%3 == 0 {
					query, came = d.ask("other", 8), before // it came during that pass
				}
			}
			alone := d.weights + 8*d.token
			slices.Sort(took)
			if half := took[len(took)/2]; half > 8*alone {
				t.Errorf("%s: half of the queries next to texts of %d tokens take more than %.0f ms, alone %.0f ms", name, text, 1e3*half, 1e3*alone)
			}
			if most := took[len(took)*95/100]; most > 20*alone {
				t.Errorf("%s: some queries next to texts of %d tokens take %.0f ms, alone %.0f ms", name, text, 1e3*most, 1e3*alone)
			}
		}
	}
}

// Lists and long texts of two tenants have half of the time each.
func TestTextsOfTwoTenantsHaveHalfOfTheTime(t *testing.T) {
	for name, device := range devices {
		for _, texts := range [][2]int{{110, 110}, {110, 8191}, {110, 32_000}, {300, 8191}, {8, 110}, {8, 8191}, {400, 30}} {
			d := device.on(t, 32_768)
			spent := map[string]float64{}
			for range 12 {
				d.ask("a", texts[0])
				d.ask("b", texts[1])
			}
			for n := range 6000 {
				for _, r := range d.step() {
					d.ask(r.tenant, r.inputs[0].Len())
				}
				if n > 2000 {
					spent[d.last] += d.spent
				}
			}
			if d.pace.room < 32 {
				t.Errorf("%s: a pass of texts of %d and %d tokens has %d, which take much longer than in large ones", name, texts[0], texts[1], d.pace.room)
			}
			if part := spent["a"] / (spent["a"] + spent["b"]); part < 0.25 || part > 0.65 {
				t.Errorf("%s: texts of %d tokens have %.2f of the time next to those of %d", name, texts[0], part, texts[1])
			}
		}
	}
}

// However long passes take, and with that parts of texts: the cache is never too full, no part shares a pass, and every
// text is computed.
func TestTextsInPartsOfAnySizeAreAllComputed(t *testing.T) {
	loop := countPassesOf(t, wideChunks{ref.New(ref.Options{})}, textContext)
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 22))
		l := loop(textContext + rng.IntN(2*textContext))
		speed := 1.0
		l.took = func(_ []passInput, tokens, depths []int) {
			if rng.IntN(30) == 0 {
				speed = math.Pow(10, 2*rng.Float64()-1)
				l.pace = embedPace{Pace: batch.Pace{Slice: textSlice}}
			}
			l.pace.tookPart(time.Duration(float64(tokens[0])*speed*1e6), tokens[0], depths[0])
		}
		tenants := 2 + rng.IntN(8)
		since := map[*embedding]int{}
		ask := func(tenant string) { since[l.ask(tenant, 1+rng.IntN([]int{120, 512, 800}[rng.IntN(3)]))] = l.passes }
		for i := range 3 * tenants {
			ask(strconv.Itoa(i % tenants))
		}
		for l.passes < 3000 {
			for _, r := range l.step() {
				delete(since, r)
				ask(r.tenant)
			}
			for r, at := range since {
				if most := 2 * 3 * tenants * 800 / 32; l.passes-at > most {
					t.Fatalf("seed %d: a text of %d tokens is not computed in %d passes", seed, r.inputs[0].Len(), most)
				}
			}
		}
	}
}
