package engine

import (
	"context"
	"crypto/sha256"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"metalfleet.dev/metalfleet/metal/batch"
	"metalfleet.dev/metalfleet/metal/family"
	"metalfleet.dev/metalfleet/metal/footprint"
	"metalfleet.dev/metalfleet/metal/kv"
	"metalfleet.dev/metalfleet/metal/nn"
	"metalfleet.dev/metalfleet/metal/share"
	"metalfleet.dev/metalfleet/metal/tensor"
	"metalfleet.dev/metalfleet/metal/vision"
)

const (
	// maxImages of one request.
	maxImages = 64
	// imagesParam is the field of a request that has the images.
	imagesParam = "messages"
)

// imageProcessor prepares the images of requests. It does not change once the model is
// loaded; any goroutine may use it.
type imageProcessor struct {
	processor vision.Processor
	tower     family.Tower
	limits    vision.Limits
	// decoding has one place, because only the memory for one image is reserved. Tenants
	// take turns at it with each image.
	decoding *share.Turns
	// measuring has one place too: the codes of a lossless WebP may take long to read.
	measuring *share.Turns
	// encoded are the images of requests until they are decoded, as they were sent, and scaled
	// those after that.
	encoded *share.Bytes
	scaled  *scaledImages
}

func newImageProcessor(p vision.Processor, tower family.Tower) *imageProcessor {
	limits := vision.DefaultLimits()
	limits.Pixels = footprint.MaxImagePixels
	return &imageProcessor{processor: p, tower: tower, limits: limits, decoding: share.NewTurns(1), measuring: share.NewTurns(1),
		encoded: share.NewBytes(footprint.EncodedImages), scaled: newScaledImages(footprint.HeldImages)}
}

// bytes of the images that requests hold, encoded or scaled.
func (p *imageProcessor) bytes() int64 {
	if p == nil {
		return 0
	}
	return p.encoded.Held() + p.scaled.held.Held()
}

// receive counts the encoded images of a request until release is called.
func (p *imageProcessor) receive(tenant string, images [][]byte) (release func(), refusal *Refusal) {
	if p == nil || len(images) == 0 {
		return func() {}, nil
	}
	var n int64
	for _, data := range images {
		n += int64(len(data))
	}
	if most := p.encoded.Limit(tenant); n > most {
		return nil, invalid(imagesParam, "the images of the request have %d bytes, want at most %d; send fewer or smaller images", n, most)
	}
	if !p.encoded.Take(tenant, n) {
		return nil, &Refusal{Kind: QueueFull, Message: "too many images of other requests wait to be decoded; try again", RetryAfter: retryAfter}
	}
	return func() { p.encoded.Give(tenant, n) }, nil
}

// measured are the images of a request before they are decoded. It ends with the context.
func (p *imageProcessor) measured(ctx context.Context, tenant string, images [][]byte) ([]*promptImage, *Refusal) {
	switch {
	case len(images) == 0:
		return nil, nil
	case p == nil:
		return nil, invalid(imagesParam, "this model does not support image input; remove the images, or choose a model with vision")
	case len(images) > maxImages:
		return nil, invalid(imagesParam, "%d images, want at most %d", len(images), maxImages)
	}
	var out []*promptImage
	for i, data := range images {
		m, err := p.measureOne(ctx, tenant, data)
		if ctx.Err() != nil {
			return nil, cancelled()
		}
		if err != nil {
			return nil, unusable(i, err)
		}
		out = append(out, m)
	}
	return out, nil
}

func (p *imageProcessor) measureOne(ctx context.Context, tenant string, data []byte) (*promptImage, error) {
	if err := p.measuring.Take(ctx, tenant); err != nil {
		return nil, err
	}
	defer p.measuring.Give(tenant)
	width, height, err := vision.Size(data, p.limits)
	if err != nil {
		return nil, err
	}
	rows, columns, err := p.processor.Grid(width, height)
	if err != nil {
		return nil, err
	}
	return &promptImage{
		digest: sha256.Sum256(data), width: columns * p.processor.Patch, height: rows * p.processor.Patch,
		span: vision.Span{Rows: rows / p.processor.Merge, Columns: columns / p.processor.Merge},
	}, nil
}

// unusable is the refusal of the image of an index.
func unusable(i int, err error) *Refusal {
	return invalid(imagesParam, "image %d cannot be used: %v", i+1, err)
}

// decode decodes and scales images, which then hold memory until they are released. One
// image is decoded at a time.
func (p *imageProcessor) decode(ctx context.Context, tenant string, images []*promptImage, encoded [][]byte) *Refusal {
	need, seen := int64(0), map[[sha256.Size]byte]bool{}
	for _, m := range images {
		if !seen[m.digest] {
			need += m.bytes()
		}
		seen[m.digest] = true
	}
	if most := p.scaled.held.Limit(tenant); need > most {
		return invalid(imagesParam, "the images of the request take %d bytes after scaling, want at most %d; send fewer or smaller images", need, most)
	}
	if !p.scaled.hold(tenant, images) {
		return imagesFull()
	}
	decoded := false
	defer func() {
		if !decoded { // also in a panic
			p.scaled.release(tenant, images)
		}
	}()
	for i, m := range images {
		if err := p.decodeOne(ctx, tenant, m, encoded[i]); err != nil {
			if ctx.Err() != nil {
				return &Refusal{Kind: Cancelled, Message: "the request was cancelled"}
			}
			return unusable(i, err)
		}
	}
	decoded = true
	p.scaled.set(images, imageWaits)
	return nil
}

func imagesFull() *Refusal {
	return &Refusal{Kind: QueueFull, Message: "other requests hold too many images; try again", RetryAfter: retryAfter}
}

// decodeOne decodes and scales an image, unless another request that shares it has done so.
func (p *imageProcessor) decodeOne(ctx context.Context, tenant string, m *promptImage, encoded []byte) error {
	if err := p.decoding.Take(ctx, tenant); err != nil {
		return err
	}
	defer p.decoding.Give(tenant)
	if m.scaled.pixels != nil {
		return nil
	}
	decoded, err := vision.Decode(ctx, encoded, p.limits)
	if err != nil {
		return err
	}
	pixels, err := p.processor.Scale(decoded)
	if err != nil {
		return err
	}
	if pixels.Width != m.width || pixels.Height != m.height {
		return fmt.Errorf("%w: its size is not the one in its header", vision.ErrCorrupt)
	}
	m.scaled.pixels = pixels
	return nil
}

// placeholder is what a chat template writes for an image, and what the processor of the family
// makes of it; both are empty where that is the same.
func (p *imageProcessor) placeholder(spell func(int32) []byte) (mark, with string) {
	t := p.tower
	if t.Begin == 0 {
		return "", ""
	}
	begin, image, end := string(spell(t.Begin)), string(spell(t.Image)), string(spell(t.End))
	if t.Bare {
		return image, begin + image + end
	}
	return begin, "\n\n" + begin + image + end + "\n\n"
}

// placed puts the placeholders of images into a prompt that a chat template wrote.
func (p *inputProcessor) placed(written string, images int, spell func(int32) []byte) (string, *Refusal) {
	mark, with := p.images.placeholder(spell)
	if mark == "" {
		return written, nil
	}
	n := strings.Count(written, mark)
	if n > images {
		return "", misplaced(n, images)
	}
	if bytes := len(written) + n*len(with); bytes > p.context*bytesPerToken {
		return "", p.tooLong(fmt.Sprintf("the prompt has %d bytes", bytes))
	}
	return strings.ReplaceAll(written, mark, with), nil
}

func misplaced(places, images int) *Refusal {
	return invalid(imagesParam, "the chat template has %d places for %d images; remove the model's image tokens from the texts, and send images in user messages only", places, images)
}

// expand repeats the token of each image as often as the image has tokens, and sets where
// images are.
func (p *imageProcessor) expand(ids []int32, images []*promptImage) ([]int32, *Refusal) {
	var out []int32
	n := 0
	for _, id := range ids {
		if id != p.tower.Image {
			out = append(out, id)
			continue
		}
		if n < len(images) {
			m := images[n]
			m.span.At = len(out)
			for range m.span.Tokens() {
				out = append(out, id)
			}
		}
		n++
	}
	if n != len(images) {
		return nil, misplaced(n, len(images))
	}
	return out, nil
}

// promptImage is an image of a prompt.
type promptImage struct {
	digest [sha256.Size]byte
	// width and height after scaling, and where its tokens are in the prompt.
	width, height int
	span          vision.Span
	// scaled is nil until the image is about to be decoded.
	scaled *scaledImage
	use    imageUse // guarded by scaledImages.mu

	// The fields after it belong to the loop. encoding is under way while it is not nil;
	// seen are the tokens, in scope, until the prompt is computed up to the end of the
	// image.
	encoding *nn.Encoding
	seen     nn.Seen
	scope    tensor.Scope
	// waitsSince is when there was no memory to begin; zero if it did not wait.
	waitsSince time.Time
}

func (m *promptImage) bytes() int64 { return 3 * int64(m.width) * int64(m.height) }

// end is the position after its tokens.
func (m *promptImage) end() int { return m.span.At + m.span.Tokens() }

// forget frees what the back end holds of an image.
func (m *promptImage) forget() {
	if m.scope != nil {
		m.scope.Close()
	}
	m.scope, m.encoding, m.seen, m.waitsSince = nil, nil, nn.Seen{}, time.Time{}
}

// promptImages are the images of a sequence in the order of the prompt; nil if there are
// none.
type promptImages struct {
	list      []*promptImage
	processor *imageProcessor
	tenant    string
	spans     []vision.Span
	released  atomic.Bool
}

func newPromptImages(p *imageProcessor, tenant string, list []*promptImage) *promptImages {
	if len(list) == 0 {
		return nil
	}
	out := &promptImages{list: list, processor: p, tenant: tenant}
	for _, m := range list {
		out.spans = append(out.spans, m.span)
	}
	return out
}

// release returns the memory of the scaled images; twice does nothing.
func (p *promptImages) release() {
	if p == nil || p.released.Swap(true) {
		return
	}
	p.processor.scaled.release(p.tenant, p.list)
}

// computed notes that the prompt is in KV.
func (p *promptImages) computed() {
	if p != nil {
		p.processor.scaled.set(p.list, imageDone)
	}
}

// waits notes that a request has lost its KV, and whether its prompt had been computed.
func (p *promptImages) waits(done bool) {
	switch {
	case p == nil:
	case done:
		p.processor.scaled.set(p.list, imageDone)
	default:
		p.processor.scaled.set(p.list, imageWaits)
	}
}

// forget frees what the back end holds of images that end at this position or before it.
func (p *promptImages) forget(computed int) {
	if p == nil {
		return
	}
	for _, m := range p.list {
		if m.end() <= computed {
			m.forget()
		}
	}
}

// missing is the first image with tokens in [first, last) whose tokens are not there;
// nil if there is none.
func (p *promptImages) missing(first, last int) *promptImage {
	if p == nil {
		return nil
	}
	for _, m := range p.list {
		if m.span.At < last && m.end() > first && m.seen.States == nil {
			return m
		}
	}
	return nil
}

// whole are the runs of the prompt that no step may divide.
func (p *promptImages) whole() (out []batch.Span) {
	if p == nil || !p.processor.tower.Mutual {
		return nil
	}
	for _, m := range p.list {
		out = append(out, batch.Span{From: m.span.At, To: m.end()})
	}
	return out
}

// keys are the images as the keys of the prefix cache depend on them.
func (p *promptImages) keys() (out []kv.Image) {
	if p == nil {
		return nil
	}
	for _, m := range p.list {
		out = append(out, kv.Image{From: m.span.At, To: m.end(), Digest: m.digest})
	}
	return out
}

// sight is what a step has of images; none if none of its sequences has any.
func (r *runner) sight(s tensor.Scope, step batch.Step) (out nn.Sight) {
	var places []vision.Place
	flat, any, first := true, false, 0
	for _, row := range step.Rows {
		images := r.byID[row.ID].images
		var spans []vision.Span
		if images != nil {
			any, spans = true, images.spans
			images.into(&out, s, row, first)
		}
		some, even := vision.Places(spans, row.Start, row.Length)
		places, flat = append(places, some...), flat && even
		first += row.Length
	}
	if any && r.axes {
		out.Turns = nn.TurnsOf(places, flat)
	}
	return out
}

// into adds the images of a row, which begins at row first of its step.
func (p *promptImages) into(out *nn.Sight, s tensor.Scope, row batch.Row, first int) {
	for _, m := range p.list {
		from, to := max(m.span.At, row.Start), min(m.end(), row.Start+row.Length)
		if from >= to {
			continue
		}
		one := nn.Sighted{Seen: m.seen}
		for i := from; i < to; i++ {
			one.Rows = append(one.Rows, first+i-row.Start)
		}
		if to-from < m.span.Tokens() {
			one.Seen = partOf(s, m.seen, from-m.span.At, to-from)
		}
		out.Images = append(out.Images, one)
		if p.processor.tower.Mutual {
			out.Mutual = append(out.Mutual, tensor.Run{First: first + from - row.Start, Length: to - from})
		}
	}
}

// partOf are n tokens of an image from first on.
func partOf(s tensor.Scope, m nn.Seen, first, n int) nn.Seen {
	rows := make([]int, n)
	for i := range rows {
		rows[i] = first + i
	}
	out := nn.Seen{States: s.Rows(m.States, rows)}
	for _, d := range m.Deep {
		out.Deep = append(out.Deep, s.Rows(d, rows))
	}
	return out
}
