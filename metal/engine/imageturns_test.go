package engine

import (
	"bytes"
	"image"
	"image/png"
	"slices"
	"testing"
	"testing/synctest"

	"metalfleet.dev/metalfleet/metal/family"
	"metalfleet.dev/metalfleet/metal/vision"
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
			list, refusal := p.measured(encoded)
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
