package footprint

import (
	"bytes"
	"context"
	"image"
	"image/png"
	"maps"
	"math/rand/v2"
	"path/filepath"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/metal/vision"
	"metalfleet.dev/metalfleet/metal/wire"
	"metalfleet.dev/metalfleet/test/bench/models"
	"metalfleet.dev/metalfleet/test/bench/served"
)

// sight is what fills the memory of images: requests with one of width x height, the largest
// that the tower takes, and then largest ones with as many bytes and pixels as are accepted.
type sight struct{ width, height, context, requests, largest int }

// seers have a tower whose layers are as wide as those of small models.
func seers(dir string) (out []row) {
	for _, r := range []row{{name: "qwen3_vl", family: "qwen3", sight: &sight{1024, 512, 640, 32, 5}}, {name: "gemma4", family: "gemma4", sight: &sight{960, 672, 512, 29, 5}}} {
		m := tinymodel.Seeing(r.name)
		text, tower := m.Config["text_config"].(map[string]any), m.Config["vision_config"].(map[string]any)
		maps.Copy(text, map[string]any{"hidden_size": 512, "intermediate_size": 2048, "head_dim": 64, "vocab_size": 32000, "vocab_size_per_layer_input": 32000, "max_position_embeddings": 4096})
		maps.Copy(tower, map[string]any{"hidden_size": 384, "intermediate_size": 1536, "num_heads": 6, "num_attention_heads": 6, "num_key_value_heads": 6, "head_dim": 64, "patch_size": 16, "use_clipped_linears": true, "out_hidden_size": 512})
		if maps.Copy(m.Images, map[string]any{"patch_size": 16, "max_soft_tokens": 280, "size": map[string]any{"shortest_edge": 65536, "longest_edge": 524288}}); r.family == "gemma4" {
			tower["position_embedding_size"] = 10240
		}
		r.name += "-32000-images"
		m.Name, r.quick, r.slow = r.name, promise{r.sight.context, 1}, promise{r.sight.context, 1}
		r.ready = func(context.Context) (string, error) { return models.WriteDescribed(filepath.Join(dir, m.Name), m) }
		out = append(out, r)
	}
	return out
}

// encoded is a PNG whose first rows are noise, which does not compress.
func encoded(width, height, noise int) ([]byte, error) {
	m, rng := image.NewRGBA(image.Rect(0, 0, width, height)), rand.New(rand.NewPCG(1, 2))
	for i := range m.Pix {
		if m.Pix[i] = 255; i%4 != 3 && i < 4*width*noise {
			m.Pix[i] = byte(rng.Uint32())
		}
	}
	var out bytes.Buffer
	err := (&png.Encoder{CompressionLevel: png.BestSpeed}).Encode(&out, m)
	return out.Bytes(), err
}

// lookAll has images wait, scaled, for the first of them in the tower, and then the largest
// ones come, again and again if they are refused: one is decoded meanwhile, others wait for it,
// and one is received. It ends when these have answers.
func lookAll(ctx context.Context, e *served.Engine, s sight) error {
	ctx, cancel := context.WithCancel(ctx)
	var all, largest errgroup.Group
	defer func() { _ = all.Wait() }() // most are cancelled
	defer cancel()
	ask := func(priority int32, data []byte) error {
		parts := []*wire.ContentPart{{Part: &wire.ContentPart_Image{Image: data}}}
		_, err := served.Generate(ctx, e.Client, &wire.GenerateRequest{MaxTokens: 1, Priority: priority, Input: &wire.GenerateRequest_Chat{Chat: &wire.Chat{Messages: []*wire.ChatMessage{{Role: "user", Parts: parts}}}}}, func(*wire.GenerateEvent) {})
		return err
	}
	few, err := encoded(s.width, s.height, 0)
	if err != nil {
		return err
	}
	const side = 5120 // squared: vision.DefaultLimits().Pixels
	many, err := encoded(side, side, vision.DefaultLimits().Bytes*97/100/side/3)
	if err != nil {
		return err
	}
	for range s.requests {
		all.Go(func() error { return ask(0, few) })
	}
	for range s.largest {
		largest.Go(func() error {
			err := ask(1, many)
			for ; status.Code(err) == codes.ResourceExhausted; err = ask(1, many) {
			}
			return err
		})
	}
	return largest.Wait()
}
