package arch_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"

	"metalfleet.dev/metalfleet/metal/arch"
	"metalfleet.dev/metalfleet/metal/family"
	"metalfleet.dev/metalfleet/metal/nn"
	"metalfleet.dev/metalfleet/metal/tensor"
	"metalfleet.dev/metalfleet/metal/vision"
	"metalfleet.dev/metalfleet/metal/weights"
)

// seeing is a tiny model with a vision tower, and what references compute of two images;
// test/oracle/goldens/vision wrote it.
type seeing struct {
	described
	// Grids are rows and columns of the patches of each image.
	Grids   [][2]int
	Records map[string]seen
}

// seen are the tokens of all images, and logits after a prompt with both.
type seen struct {
	Seen   []float64
	Deep   [][]float64
	Logits [][]float64
	Greedy []int32
}

func seeingModels(t *testing.T) []seeing {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", "vision", "towers.json"))
	if err != nil {
		t.Fatal(err)
	}
	var r struct{ Cases []seeing }
	if err := json.Unmarshal(b, &r); err != nil || len(r.Cases) < 3 {
		t.Fatalf("%d cases: %v", len(r.Cases), err)
	}
	return r.Cases
}

// patchesOf are those of an image, which the references were given too.
func patchesOf(i int, grid [2]int, width int) *vision.Patches {
	p := &vision.Patches{Rows: grid[0], Columns: grid[1], Width: width, Values: make([]float32, grid[0]*grid[1]*width)}
	raw := tensorSpec{kind: "F32", spread: 1, shape: []int{len(p.Values)}}.values(fmt.Sprintf("patches %d", i))
	for j := range p.Values {
		p.Values[j] = math.Float32frombits(binary.LittleEndian.Uint32(raw[4*j:]))
	}
	return p
}

// TestTowersEqualTheReferences computes the tokens of every image on every back
// end.
func TestTowersEqualTheReferences(t *testing.T) {
	for _, b := range backends() {
		for _, c := range seeingModels(t) {
			t.Run(b.name+"/"+c.Name, func(t *testing.T) {
				states, deep, _ := c.encode(t, b.open(t))
				var config struct {
					Text struct {
						Width int `json:"hidden_size"`
					} `json:"text_config"`
				}
				if err := json.Unmarshal(c.Config, &config); err != nil {
					t.Fatal(err)
				}
				width := config.Text.Width
				if c.Records["transformers"].Seen == nil {
					t.Fatal("transformers has not computed this model")
				}
				for name, want := range c.Records {
					tolerance := b.tolerance[0]
					for _, v := range b.tolerance {
						tolerance = max(tolerance, v)
					}
					t.Logf("%s: tokens are off by %.1e", name, off(t, width, states, want.Seen))
					if e := off(t, width, states, want.Seen); e > tolerance {
						t.Errorf("%s: tokens are off by %.1e of the largest number, want at most %.1e", name, e, tolerance)
					}
					if len(deep) != len(want.Deep) {
						t.Fatalf("%d deep states, want %d", len(deep), len(want.Deep))
					}
					for i := range deep {
						if e := off(t, width, deep[i], want.Deep[i]); e > tolerance {
							t.Errorf("%s: deep states %d are off by %.1e, want at most %.1e", name, i, e, tolerance)
						}
					}
				}
			})
		}
	}
}

// off is the largest difference from every stride-th token of a width, as a part of the largest
// number.
func off(t *testing.T, width int, got []float32, want []float64) (worst float64) {
	t.Helper()
	largest, at := 0.0, 0
	for row := 0; row < len(got)/width; row += stride {
		for _, v := range got[row*width:][:width] {
			if at == len(want) {
				t.Fatalf("more than %d numbers", len(want))
			}
			largest, worst = max(largest, math.Abs(want[at])), max(worst, math.Abs(float64(v)-want[at]))
			at++
		}
	}
	if at != len(want) || largest == 0 {
		t.Fatalf("%d numbers, want %d", at, len(want))
	}
	return worst / largest
}

// encode returns the tokens of all images, and those of deep layers, one image after
// another.
func (c seeing) encode(t *testing.T, b tensor.Backend) (states []float32, deep [][]float32, of family.Tower) {
	t.Helper()
	f, err := weights.Open(c.write(t))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if f.Tower() == nil {
		t.Fatalf("no tower: %v", f.Dim.TowerFault)
	}
	if f.Tower().ChannelsLast() {
		t.Error("a kernel of transformers has its channels first")
	}
	if err := b.Attach(); err != nil {
		t.Fatal(err)
	}
	tower, err := nn.LoadTower(context.Background(), nn.NewLoader(b, f.Tower(), nil), *f.Dim.Tower)
	if err != nil {
		t.Fatal(err)
	}
	read := func(s tensor.Scope, a tensor.Array) []float32 {
		out := make([]float32, a.Shape()[0]*a.Shape()[1])
		s.Read(a, out)
		return out
	}
	for i, grid := range c.Grids {
		s := b.NewScope(context.Background())
		got := tower.Encode(s, patchesOf(i, grid, f.Dim.Tower.PatchWidth()))
		if err := s.Err(); err != nil {
			t.Fatal(err)
		}
		states = append(states, read(s, got.States)...)
		for j, a := range got.Deep {
			if len(deep) == j {
				deep = append(deep, nil)
			}
			deep[j] = append(deep[j], read(s, a)...)
		}
		s.Close()
	}
	tower.Release()
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	return states, deep, *f.Dim.Tower
}

// imageToken takes the place of images in the record's prompts.
const imageToken = 90

// prompt is text with all images, and where they are.
func (c seeing) prompt(merge int) (ids []int32, images []vision.Span) {
	ids = []int32{5, 17, 33}
	for i, g := range c.Grids {
		span := vision.Span{At: len(ids) + 1, Rows: g[0] / merge, Columns: g[1] / merge}
		images = append(images, span)
		ids = append(ids, 92)
		for range span.Tokens() {
			ids = append(ids, imageToken)
		}
		ids = append(ids, 93, 40+int32(i), 7, 61)
	}
	return ids, images
}

// sighted are the images of a prompt, and their tokens on the host.
type sighted struct {
	images []vision.Span
	states []float32
	deep   [][]float32
	mutual bool
}

// sight gives tokens [first, first+n) of a prompt those of its images.
func (of sighted) sight(s tensor.Scope, first, n int) (out nn.Sight) {
	from, at := -1, 0
	var one nn.Sighted
	for _, m := range of.images {
		if of.mutual && m.At >= first && m.At < first+n {
			out.Mutual = append(out.Mutual, tensor.Run{First: m.At - first, Length: m.Tokens()})
		}
		for i := range m.Tokens() {
			if t := m.At + i; t >= first && t < first+n {
				if from < 0 {
					from = at
				}
				one.Rows = append(one.Rows, t-first)
			}
			at++
		}
	}
	if rows := len(one.Rows); rows > 0 {
		width := len(of.states) / at
		part := func(v []float32) tensor.Array { return s.From(v[from*width:][:rows*width], rows, width) }
		one.States = part(of.states)
		for _, d := range of.deep {
			one.Deep = append(one.Deep, part(d))
		}
		out.Images = []nn.Sighted{one}
	}
	places, flat := vision.Places(of.images, first, n)
	out.Turns = nn.TurnsOf(places, flat)
	return out
}

// TestLogitsOfImagesEqualTheReferences prefills prompts with images at once and in
// chunks, which may end inside an image, and decodes after them.
func TestLogitsOfImagesEqualTheReferences(t *testing.T) {
	for _, b := range backends() {
		for _, c := range seeingModels(t) {
			chunks := []int{1000, 7}
			if c.Name == "gemma3" || c.Name == "gemma4" {
				chunks[1] = 16 // images are whole
			}
			for _, chunk := range chunks {
				t.Run(fmt.Sprintf("%s/%s/%d tokens at a time", b.name, c.Name, chunk), func(t *testing.T) {
					states, deep, tower := c.encode(t, b.open(t))
					n := loadOn(t, c.write(t), b.open(t))
					ids, images := c.prompt(tower.Merge)
					want := c.Records["transformers"]
					ids = append(ids, want.Greedy...)
					all := len(ids) - len(want.Greedy)
					var got [][]float32
					for at := 0; at < len(ids)-1; {
						length := 1
						if at < all {
							length = min(chunk, all-at)
						}
						got = append(got, n.see(t, ids[at:at+length], at, sighted{images, states, deep, tower.Mutual}))
						at += length
					}
					got = got[len(got)-len(want.Logits):]
					for i, w := range want.Logits {
						largest, worst := 0.0, 0.0
						for j, v := range w {
							largest, worst = max(largest, math.Abs(v)), max(worst, math.Abs(v-float64(got[i][j])))
						}
						if e := worst / largest; e > b.tolerance[n.precision] {
							t.Errorf("logits %d after the prompt are off by %.1e of the largest, want at most %.1e", i, e, b.tolerance[n.precision])
						} else {
							t.Logf("logits %d are off by %.1e", i, e)
						}
					}
				})
			}
		}
	}
}

// see runs tokens of request 1, and returns the logits after the last.
func (n *network) see(t *testing.T, ids []int32, at int, of sighted) []float32 {
	t.Helper()
	s := n.b.NewScope(context.Background())
	defer s.Close()
	m := n.m.(arch.Seeing)
	out := m.StepSeeing(s, n.cache, s.IDs(ids), []tensor.Segment{{Request: 1, Start: at, Length: len(ids)}}, []int{len(ids) - 1}, of.sight(s, at, len(ids)))
	if err := s.Err(); err != nil {
		t.Fatal(err)
	}
	got := make([]float32, out.Shape()[1])
	s.Read(out, got)
	return got
}
