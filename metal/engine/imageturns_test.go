package engine

import (
	"bytes"
	"cmp"
	"context"
	"image"
	"image/png"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/metal/chat"
	"metalfleet.dev/metalfleet/metal/family"
	"metalfleet.dev/metalfleet/metal/share"
	"metalfleet.dev/metalfleet/metal/text"
	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/metal/vision"
	"metalfleet.dev/metalfleet/metal/weights"
)

// sixteen returns an image processor of 16 x 16 pixels, and an image.
func sixteen(t *testing.T) (*imageProcessor, []byte) {
	t.Helper()
	var b bytes.Buffer
	if err := png.Encode(&b, image.NewRGBA(image.Rect(0, 0, 16, 16))); err != nil {
		t.Fatal(err)
	}
	p := vision.Processor{Sizing: vision.Fixed, Width: 16, Height: 16, Filter: vision.Bilinear, Patch: 8, Merge: 1, Frames: 1}
	return newImageProcessor(p, family.Tower{}), b.Bytes()
}

// TestAttackImagesOfOneTenantAreDecodedFirst: however many images a tenant sends, one of them at
// most is decoded before the image of another tenant.
func TestAttackImagesOfOneTenantAreDecodedFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, data := sixteen(t)
		if err := p.decoding.Take(t.Context(), "hog"); err != nil { // for an image that takes long
			t.Fatal(err)
		}
		const requests = 9
		ended := make(chan string, requests+1)
		ask := func(tenant string) {
			encoded := [][]byte{data}
			list, refusal := p.measured(t.Context(), tenant, encoded)
			if refusal != nil {
				t.Fatal(refusal)
			}
			go func() {
				if refusal := p.decode(t.Context(), tenant, list, encoded); refusal != nil {
					t.Error(refusal)
				}
				ended <- tenant
			}()
			synctest.Wait()
		}
		for range requests {
			ask("hog")
		}
		ask("victim")
		p.decoding.Give("hog")
		order := slices.Repeat([]string{""}, requests+1)
		for i := range order {
			order[i] = <-ended
		}
		if n := slices.Index(order, "victim"); n > 2 { // one, and one that ended while this one was counted
			t.Errorf("%d images of one tenant were decoded before the one of another", n)
		}
		if p.decoding.Free() != 1 {
			t.Error("the place to decode an image is not given back")
		}
	})
}

// TestTheSameImageIsDecodedOnceForATenant: requests that have it at a time share its pixels, which
// count once and until the last of them ends; another tenant's do not.
func TestTheSameImageIsDecodedOnceForATenant(t *testing.T) {
	p, data := sixteen(t)
	ask := func(tenant string, images int) *promptImages {
		encoded := slices.Repeat([][]byte{data}, images)
		list, refusal := p.measured(t.Context(), tenant, encoded)
		if refusal == nil {
			refusal = p.decode(t.Context(), tenant, list, encoded)
		}
		if refusal != nil {
			t.Fatal(refusal)
		}
		return newPromptImages(p, tenant, list)
	}
	first := ask("a", 2)
	pixels := first.list[1].scaled.pixels
	second, other := ask("a", 1), ask("b", 1)
	if second.list[0].scaled.pixels != pixels {
		t.Error("the same image is decoded twice for one tenant")
	}
	if other.list[0].scaled.pixels == pixels {
		t.Error("tenants share an image")
	}
	size := first.list[0].bytes()
	for i, c := range []struct {
		ends *promptImages
		left int64
	}{{nil, 2}, {first, 2}, {first, 2}, {second, 1}, {other, 0}} {
		if c.ends.release(); p.bytes() != c.left*size {
			t.Errorf("after %d of the requests ended, images count as %d bytes, want %d", i, p.bytes(), c.left*size)
		}
	}
	if again := ask("a", 1); again.list[0].scaled.pixels == pixels || len(p.scaled.of) != 1 {
		t.Error("an image is kept after its requests")
	}
}

// What was decoded before a damaged image is not held.
func TestADamagedImageLeavesNoneHeld(t *testing.T) {
	p, data := sixteen(t)
	encoded := [][]byte{data, data[:len(data)-20]}
	list, refusal := p.measured(t.Context(), "a", encoded)
	if refusal != nil {
		t.Fatal(refusal)
	}
	if refusal := p.decode(t.Context(), "a", list, encoded); refusal == nil || p.bytes() != 0 || len(p.scaled.of) != 0 {
		t.Errorf("%v; %d bytes are held of %d images", refusal, p.bytes(), len(p.scaled.of))
	}
}

// Images are measured one after another, by tenant, and not for a client that has left.
func TestImagesAreMeasuredInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, data := sixteen(t)
		if err := p.measuring.Take(t.Context(), "hog"); err != nil { // for an image that takes long
			t.Fatal(err)
		}
		left, leave := context.WithCancel(t.Context())
		ended := make(chan string, 4)
		ask := func(ctx context.Context, name, tenant string) {
			go func() {
				if _, refusal := p.measured(ctx, tenant, [][]byte{data, data}); (refusal != nil) != (name == "left") || refusal != nil && refusal.Kind != Cancelled {
					t.Errorf("%s: %v", name, refusal)
				}
				ended <- name
			}()
			synctest.Wait()
		}
		ask(t.Context(), "hog", "hog")
		ask(left, "left", "hog")
		ask(t.Context(), "victim", "victim")
		if len(ended) > 0 {
			t.Errorf("an image of %s is measured at the time of another", <-ended)
		}
		leave()
		synctest.Wait()
		if len(ended) != 1 || <-ended != "left" {
			t.Error("a client that has left still waits")
		}
		p.measuring.Give("hog")
		<-ended
		<-ended
		if ask(left, "left", "hog"); p.measuring.Free() != 1 {
			t.Error("the place to measure an image is not given back")
		}
	})
}

// seeingInput reads the requests of a tiny model with image input.
func seeingInput(t *testing.T) *inputProcessor {
	t.Helper()
	path := filepath.Join(t.TempDir(), "qwen3_vl")
	if err := tinymodel.Seeing("qwen3_vl").Write(path); err != nil {
		t.Fatal(err)
	}
	f, err := weights.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	processor, err := f.Processor()
	if err != nil {
		t.Fatal(err)
	}
	p := &inputProcessor{context: 512, ends: map[int32]bool{}, task: model.Generate, images: newImageProcessor(processor, *f.Dim.Tower), long: share.NewTurns(1), received: share.NewBytes(receivedBytes), prompts: share.NewBytes(promptBytes), renders: share.NewTurns(renderPlaces)}
	if err := p.open(t.Context(), f, ""); err != nil {
		t.Fatal(err)
	}
	return p
}

// TestAttackImagesOfOneTenantThatWait: encoded images are counted until they are decoded, and
// one tenant's leave room to others.
func TestAttackImagesOfOneTenantThatWait(t *testing.T) {
	p := seeingInput(t)
	synctest.Test(t, func(t *testing.T) {
		_, data := sixteen(t)
		size := int64(len(data))
		p.images.encoded = share.NewBytes(8 * size)
		if err := p.images.decoding.Take(t.Context(), "slow"); err != nil {
			t.Fatal(err)
		}
		sequences := make(chan *sequence, 8)
		ask := func(tenant string, images int) *Refusal {
			var refused *Refusal
			parts := slices.Repeat([]chat.Part{{Image: true}}, images)
			r := Request{Tenant: tenant, Images: slices.Repeat([][]byte{data}, images), Chat: &text.Chat{Messages: []chat.Message{{Role: "user", Parts: parts}}}}
			go func() {
				s, refusal := p.sequenceOf(t.Context(), r)
				if refused = refusal; s != nil {
					sequences <- s
				}
			}()
			synctest.Wait()
			return refused
		}
		for _, c := range []struct {
			tenant  string
			images  int
			refused Kind
			message string
		}{
			{tenant: "hog", images: 5, refused: Invalid, message: "a request alone that is larger than its tenant's share"},
			{tenant: "hog", images: 3},
			{tenant: "hog", images: 1},
			{tenant: "hog", images: 1, refused: QueueFull, message: "a request beyond its tenant's share"},
			{tenant: "victim", images: 2},
		} {
			refusal := ask(c.tenant, c.images)
			if waits := c.message == ""; waits != (refusal == nil) || !waits && refusal.Kind != c.refused {
				t.Errorf("%s, %d images: %v, want %s", c.tenant, c.images, refusal, cmp.Or(c.message, "a request that waits"))
			}
		}
		if n := p.images.bytes(); n < 6*size {
			t.Errorf("%d bytes are counted of requests with %d", n, 6*size)
		}
		p.images.decoding.Give("slow")
		for range 3 {
			(<-sequences).images.release()
		}
		synctest.Wait()
		if n := p.images.bytes(); n != 0 {
			t.Errorf("%d bytes of images are held after their requests", n)
		}
	})
}

// TestAttackManyValuesWaitLikeLongTexts: short JSON of many values takes as much memory as a
// long text, so it waits for its turn.
func TestAttackManyValuesWaitLikeLongTexts(t *testing.T) {
	p := tinyInput(t)
	many := []byte("[" + strings.Repeat("{},", 10_000) + "{}]")
	few := []byte("[{},{}]")
	for name, c := range map[string]struct {
		chat  text.Chat
		waits bool
	}{
		"tools": {chat: text.Chat{Tools: many}, waits: true}, "arguments": {chat: text.Chat{Arguments: many}, waits: true},
		"a message": {chat: text.Chat{Messages: []chat.Message{{Extra: many}}}, waits: true}, "few tools": {chat: text.Chat{Tools: few}},
	} {
		for step, take := range map[string]func(ctx context.Context, r Request) *Refusal{
			"tokens": func(ctx context.Context, r Request) *Refusal {
				_, refusal := p.tokens(ctx, r, nil)
				return refusal
			},
			"calls": func(ctx context.Context, r Request) *Refusal {
				_, refusal := p.readTools(ctx, r)
				return refusal
			},
		} {
			synctest.Test(t, func(t *testing.T) {
				p.long = share.NewTurns(1)
				if err := p.long.Take(t.Context(), "other"); err != nil {
					t.Fatal(err)
				}
				ended := make(chan *Refusal, 1)
				go func() { ended <- take(t.Context(), Request{Tenant: "a", Chat: &c.chat}) }()
				synctest.Wait()
				if waits := len(ended) == 0; waits != c.waits {
					t.Errorf("%s of %s: it waits: %t", step, name, waits)
				}
				p.long.Give("other")
				<-ended
				if p.long.Free() != 1 {
					t.Errorf("%s of %s: the turn is not given back", step, name)
				}
			})
		}
	}
}

// TestAttackLongTextsOfOneTenant: at most one of them is turned into tokens before that of
// another tenant.
func TestAttackLongTextsOfOneTenant(t *testing.T) {
	p := tinyInput(t)
	p.context = longBytes/bytesPerToken + 1
	synctest.Test(t, func(t *testing.T) {
		p.long = share.NewTurns(1)
		if err := p.long.Take(t.Context(), "hog"); err != nil { // for a text that takes long
			t.Fatal(err)
		}
		const requests = 9
		ended := make(chan string, requests+1)
		ask := func(tenant string) {
			prompt := strings.Repeat("x", longBytes+1)
			go func() {
				if _, refusal := p.sequenceOf(t.Context(), Request{Tenant: tenant, Prompt: &prompt}); refusal == nil || refusal.Kind != ContextLength {
					t.Errorf("a text of %d bytes: %v", len(prompt), refusal)
				}
				ended <- tenant
			}()
			synctest.Wait()
		}
		for range requests {
			ask("hog")
		}
		ask("victim")
		p.long.Give("hog")
		for before := range requests + 1 {
			if <-ended == "victim" && before > 2 { // one, and one that ended while this one was counted
				t.Errorf("%d texts of one tenant were read before that of another", before)
			}
		}
		if p.long.Free() != 1 {
			t.Error("the place for a long text is not given back")
		}
	})
}
