//go:build !race

package responses

import (
	"bytes"
	"runtime"
	"testing"

	"metalfleet.dev/metalfleet/api/openai"
)

// TestAStoredImageIsDecodedOnce: each request that continues a response decodes its images again,
// so that takes little more than the bytes of the image.
func TestAStoredImageIsDecodedOnce(t *testing.T) {
	image := openai.Image{Data: bytes.Repeat([]byte("image"), 200<<10)}
	part := Part{Type: partImage, ImageURL: image.DataURL()}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	got, ok := part.Image()
	runtime.ReadMemStats(&after)
	if !ok || !bytes.Equal(got.Data, image.Data) {
		t.Fatalf("%v, %d bytes, want %d", ok, len(got.Data), len(image.Data))
	}
	if n := after.TotalAlloc - before.TotalAlloc; n > 2*uint64(len(image.Data)) {
		t.Errorf("%d bytes are allocated for an image of %d", n, len(image.Data))
	}
	if _, ok := (Part{Type: "input_text", Text: part.ImageURL}).Image(); ok {
		t.Error("a text is an image")
	}
}
