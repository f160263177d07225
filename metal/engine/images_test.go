//go:build !race

package engine_test

import (
	"bytes"
	"context"
	"errors"
	"image"
	"image/color"
	"image/png"
	"math"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/metal/arch"
	"metalfleet.dev/metalfleet/metal/chat"
	"metalfleet.dev/metalfleet/metal/engine"
	"metalfleet.dev/metalfleet/metal/nn"
	"metalfleet.dev/metalfleet/metal/ref"
	"metalfleet.dev/metalfleet/metal/sample"
	"metalfleet.dev/metalfleet/metal/tensor"
	"metalfleet.dev/metalfleet/metal/text"
	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/metal/vision"
	"metalfleet.dev/metalfleet/metal/weights"
)

// seeing writes a model with a vision tower.
func seeing(t *testing.T, modelType string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), modelType)
	if err := tinymodel.Seeing(modelType).Write(path); err != nil {
		t.Fatal(err)
	}
	return path
}

// picture is a PNG of a size whose pixels depend on the seed.
func picture(t *testing.T, width, height, seed int) []byte {
	t.Helper()
	m := image.NewRGBA(image.Rect(0, 0, width, height))
	for y := range height {
		for x := range width {
			m.Set(x, y, color.RGBA{uint8(x*7 + seed*31), uint8(y*11 + seed*57), uint8((x + y) * seed), 255})
		}
	}
	var b bytes.Buffer
	if err := png.Encode(&b, m); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// about is a request about images, which stand between two texts.
func about(before, after string, images ...[]byte) engine.Request {
	m := chat.Message{Role: "user", Parts: []chat.Part{{Text: before}}}
	for range images {
		m.Parts = append(m.Parts, chat.Part{Image: true}, chat.Part{Text: " and "})
	}
	m.Parts = append(m.Parts, chat.Part{Text: after})
	p := sample.Greedy()
	return engine.Request{Chat: &text.Chat{Messages: []chat.Message{m}}, Images: images, Sampling: &p, MaxTokens: 12, Logprobs: alternatives(0)}
}

// direct computes the log-probabilities of an answer with the model alone: all of the
// prompt in one step, and of the images before it.
func direct(t *testing.T, path string, prompt, answer []int32, images [][]byte) []float64 {
	t.Helper()
	b := ref.New(ref.Options{Threads: 2})
	if err := b.Attach(); err != nil {
		t.Fatal(err)
	}
	f, err := weights.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	m, err := arch.Load(t.Context(), b, f, nil)
	if err != nil {
		t.Fatal(err)
	}
	cache, err := b.NewCache(m.CacheSpec())
	if err != nil {
		t.Fatal(err)
	}
	s := b.NewScope(t.Context())
	defer s.Close()
	ids := append(slices.Clone(prompt), answer[:len(answer)-1]...)
	rows := make([]int, len(answer))
	for i := range rows {
		rows[i] = len(prompt) - 1 + i
	}
	out := m.(arch.Seeing).StepSeeing(s, cache, s.IDs(ids), []tensor.Segment{{Request: 1, Length: len(ids)}}, rows, sighted(t, b, s, f, ids, images))
	width := out.Shape()[1]
	logits := make([]float32, len(rows)*width)
	s.Read(out, logits)
	if err := s.Err(); err != nil {
		t.Fatal(err)
	}
	var got []float64
	for i, id := range answer {
		row, sum := logits[i*width:][:width], 0.0
		for _, v := range row {
			sum += math.Exp(float64(v - slices.Max(row)))
		}
		got = append(got, float64(row[id]-slices.Max(row))-math.Log(sum))
	}
	return got
}

// sighted runs images through the vision tower of a model for the tokens that stand for them.
func sighted(t *testing.T, b tensor.Backend, s tensor.Scope, f *weights.File, ids []int32, images [][]byte) (sight nn.Sight) {
	t.Helper()
	p, err := f.Processor()
	if err != nil {
		t.Fatal(err)
	}
	tower, err := nn.LoadTower(t.Context(), nn.NewLoader(b, f.Tower(), nil), *f.Dim.Tower)
	if err != nil {
		t.Fatal(err)
	}
	var spans []vision.Span
	at := 0
	for _, data := range images {
		decoded, err := vision.Decode(t.Context(), data, vision.DefaultLimits())
		if err != nil {
			t.Fatal(err)
		}
		patches, err := p.Prepare(decoded)
		if err != nil {
			t.Fatal(err)
		}
		at += slices.Index(ids[at:], f.Dim.Tower.Image)
		span := vision.Span{At: at, Rows: patches.Rows / p.Merge, Columns: patches.Columns / p.Merge}
		one := nn.Sighted{Seen: tower.Encode(s, patches)}
		for range span.Tokens() {
			one.Rows = append(one.Rows, at)
			at++
		}
		sight.Images = append(sight.Images, one)
		spans = append(spans, span)
		if f.Dim.Tower.Mutual {
			sight.Mutual = append(sight.Mutual, tensor.Run{First: span.At, Length: span.Tokens()})
		}
	}
	places, flat := vision.Places(spans, 0, len(ids))
	sight.Turns = nn.TurnsOf(places, flat)
	return sight
}

// TestAnswersAboutImagesEqualTheModelComputedDirectly compares the log-probabilities of
// prompts with several images, in chunks that end inside and outside of them, alone and
// in company.
func TestAnswersAboutImagesEqualTheModelComputedDirectly(t *testing.T) {
	for _, family := range []string{"qwen3_vl", "gemma3", "gemma4"} {
		for _, o := range []ref.Options{{}, {Ahead: true}} {
			t.Run(family, func(t *testing.T) {
				path := seeing(t, family)
				e := ready(t, engine.Options{ModelPath: path, Sequences: 4}, o)
				rs := []engine.Request{
					about("What is this? ", "Say it in a few words.", picture(t, 60, 40, 1)),
					about("What is this? ", "Say it in a few words.", picture(t, 60, 40, 2)),
					about(strings.Repeat("A long text comes first. ", 9), "Compare them.", picture(t, 90, 70, 3), picture(t, 33, 80, 4), picture(t, 60, 40, 1)),
					about("", "", picture(t, 120, 120, 5)),
				}
				var alone []answer
				for i, r := range rs {
					got := ask(t, e, r)
					alone = append(alone, got)
					stream, err := e.Generate(t.Context(), engine.Request{Chat: r.Chat, Images: r.Images, PromptOnly: true})
					if err != nil {
						t.Fatal(err)
					}
					want := direct(t, path, stream.Prompt(), got.tokens, r.Images)
					drain(t, stream)
					for j, ranked := range got.logprobs {
						if d := math.Abs(ranked.Chosen.Logprob - want[j]); d > 1e-3 {
							t.Errorf("request %d, token %d: log-probability %v, want %v", i, j, ranked.Chosen.Logprob, want[j])
						}
					}
				}
				if reflect.DeepEqual(alone[0].logprobs, alone[1].logprobs) {
					t.Error("two images have the same answer")
				}
				same(t, "in company", together(t, e, rs), alone)
			})
		}
	}
}

// TestImagesOfGemma4StandBetweenTheirTokens as its processor writes them: the template has
// one token for an image.
func TestImagesOfGemma4StandBetweenTheirTokens(t *testing.T) {
	e := ready(t, engine.Options{ModelPath: seeing(t, "gemma4")}, ref.Options{})
	r := about("ab", "c", picture(t, 90, 70, 3), picture(t, 33, 80, 4))
	r.PromptOnly = true
	s, err := e.Generate(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	const begin, image, end = 507, 508, 509
	var tokens []int
	ids := s.Prompt()
	for i := 0; i < len(ids); i++ {
		if ids[i] != begin {
			continue
		}
		first := i + 1
		for i = first; ids[i] == image; i++ {
		}
		if ids[i] != end {
			t.Fatalf("%d follows an image, want %d", ids[i], end)
		}
		tokens = append(tokens, i-first)
	}
	drain(t, s)
	if want := []int{30, 27}; !slices.Equal(tokens, want) { // 72 x 60 and 36 x 108 pixels in blocks of 12
		t.Errorf("images of %v tokens stand between their tokens, want %v: %v", tokens, want, ids)
	}
}

func drain(t *testing.T, s *engine.Stream) {
	t.Helper()
	for {
		ev, err := s.Next(context.Background())
		if err != nil || ev.Finished != nil {
			return
		}
	}
}

// TestImagesAreFoundInThePrefixCacheByTheirContent: prompts with the same tokens share
// what they have in common only if their images are the same.
func TestImagesAreFoundInThePrefixCacheByTheirContent(t *testing.T) {
	for _, family := range []string{"qwen3_vl", "gemma3", "gemma4"} {
		t.Run(family, func(t *testing.T) {
			path := seeing(t, family)
			cold := ready(t, engine.Options{ModelPath: path}, ref.Options{})
			e := ready(t, engine.Options{ModelPath: path, PrefixCache: true, CacheMemory: 16 << 20}, ref.Options{})
			first, second := picture(t, 90, 120, 1), picture(t, 90, 120, 2)
			request := func(after string, images ...[]byte) engine.Request {
				return about("Look at these. ", strings.Repeat("List all that is on them. ", 16)+after, images...)
			}
			cached := func(r engine.Request) int {
				t.Helper()
				got := ask(t, e, r)
				want := ask(t, cold, r)
				if !slices.Equal(got.tokens, want.tokens) {
					t.Errorf("the answer is %v, without a prefix cache %v", got.tokens, want.tokens)
				}
				return got.finished.Usage.Cached
			}
			if n := cached(request("a", first, second)); n != 0 {
				t.Fatalf("%d tokens of the first prompt were cached", n)
			}
			again := cached(request("b", first, second))
			if again < 256 {
				t.Errorf("%d tokens of the same images were found, want a block at least", again)
			}
			for name, images := range map[string][][]byte{"other": {second, second}, "swapped": {second, first}} {
				if n := cached(request("c", images...)); n != 0 {
					t.Errorf("%s images found %d tokens of others", name, n)
				}
			}
			text := request("d", first, second)
			s, err := e.Generate(t.Context(), text)
			if err != nil {
				t.Fatal(err)
			}
			ids := s.Prompt()
			drain(t, s)
			if got := ask(t, e, engine.Request{Tokens: ids, MaxTokens: 1}); got.finished.Usage.Cached != 0 {
				t.Errorf("the placeholders as text found %d tokens of images", got.finished.Usage.Cached)
			}
		})
	}
}

func TestAPromptThatIsPreemptedSeesItsImagesAgain(t *testing.T) {
	path := seeing(t, "qwen3_vl")
	var rs []engine.Request
	for i := range 3 {
		r := about(strings.Repeat("The fleet keeps every model. ", 6), "What is it?", picture(t, 80, 80, i))
		r.MaxTokens, r.IgnoreEnd = 600, true
		rs = append(rs, r)
	}
	want := together(t, ready(t, engine.Options{ModelPath: path, Sequences: 3}, ref.Options{}), rs)
	tight := ready(t, engine.Options{ModelPath: path, Sequences: 3, CacheTokens: 1024}, ref.Options{})
	for range 30 { // a busy machine may end one before the next is there
		same(t, "in a tight cache", together(t, tight, rs), want)
		if tight.Status().Preemptions > 0 || t.Failed() {
			return
		}
	}
	t.Error("nothing was preempted in 30 rounds")
}

func TestImagesThatCannotBeUsedAreRefused(t *testing.T) {
	for _, family := range []string{"qwen3_vl", "gemma4"} {
		t.Run(family, func(t *testing.T) { refusesImages(t, family) })
	}
}

func refusesImages(t *testing.T, family string) {
	e := ready(t, engine.Options{ModelPath: seeing(t, family), Sequences: 2}, ref.Options{})
	good := picture(t, 40, 40, 1)
	damaged := slices.Clone(good)
	damaged[len(damaged)/2] ^= 0xff
	many := make([][]byte, 65)
	for i := range many {
		many[i] = good
	}
	twice := about("<|image_pad|>", "", good)
	placed := about("", "", good)
	placed.Chat.Messages[0].Role = "system"
	type refused struct {
		request engine.Request
		kind    engine.Kind
		message string
	}
	cases := map[string]refused{
		"text":                    {about("", "", []byte("hello, this is no image")), engine.Invalid, "supported format"},
		"a damaged image":         {about("", "", damaged), engine.Invalid, "damaged"},
		"a huge image":            {about("", "", picture(t, 20000, 2, 1)), engine.Invalid, "too large"},
		"many images":             {about("", "", many...), engine.Invalid, "at most 64"},
		"tokens of images":        {twice, engine.Invalid, "places for 1 images"},
		"more than the context":   {about("", "", slices.Repeat([][]byte{picture(t, 130, 130, 1)}, 30)...), engine.ContextLength, "context"},
		"the second of two is no": {about("", "", good, []byte("x")), engine.Invalid, "image 2"},
	}
	if family == "qwen3_vl" { // others scale an image of any shape
		cases["a long image"] = refused{about("", "", picture(t, 2000, 4, 1)), engine.Invalid, "shape"}
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := e.Generate(t.Context(), tc.request)
			var r *engine.Refusal
			if !errors.As(err, &r) || r.Kind != tc.kind || !strings.Contains(r.Message, tc.message) {
				t.Errorf("%v", err)
			}
		})
	}
	if n := engine.ImageBytes(e); n != 0 {
		t.Errorf("%d bytes of images are held without a request", n)
	}
	if got := ask(t, e, about("What? ", "", good)); got.finished.Err != nil {
		t.Errorf("a good image: %v", got.finished.Err)
	}
	if n := engine.ImageBytes(e); n != 0 {
		t.Errorf("%d bytes of images are held after their request", n)
	}
	blind := ready(t, engine.Options{}, ref.Options{})
	var r *engine.Refusal
	if _, err := blind.Generate(t.Context(), about("", "", good)); !errors.As(err, &r) || r.Kind != engine.Invalid || !strings.Contains(r.Message, "does not support image input") {
		t.Errorf("a model without vision: %v", err)
	}
}

// TestRequestsThatHoldTooManyImagesAreTurnedAway: the images of all requests have one
// budget, which a request may not exceed by itself.
func TestRequestsThatHoldTooManyImagesAreTurnedAway(t *testing.T) {
	e := ready(t, engine.Options{ModelPath: seeing(t, "qwen3_vl"), Sequences: 2}, ref.Options{})
	one, two, three := picture(t, 64, 64, 1), picture(t, 64, 64, 2), picture(t, 64, 64, 3)
	engine.LimitImages(e, 2*64*64*3)
	ctx, cancel := context.WithCancel(t.Context())
	r := about("", "", one, two, one)
	r.MaxTokens, r.IgnoreEnd = 0, true
	s, err := e.Generate(ctx, r)
	if err != nil {
		t.Fatal(err)
	}
	var refusal *engine.Refusal
	if _, err := e.Generate(t.Context(), about("", "", three)); !errors.As(err, &refusal) || refusal.Kind != engine.QueueFull || refusal.RetryAfter == 0 {
		t.Errorf("a request beyond the budget of all: %v", err)
	}
	if _, err := e.Generate(t.Context(), about("", "", one, two, three)); !errors.As(err, &refusal) || refusal.Kind != engine.Invalid {
		t.Errorf("a request beyond the budget by itself: %v", err)
	}
	cancel()
	drain(t, s)
	if n := engine.ImageBytes(e); n != 0 {
		t.Errorf("%d bytes of images are held after their request was cancelled", n)
	}
}
