package engine

import (
	"testing"
	"time"

	"metalfleet.dev/metalfleet/metal/batch"
	"metalfleet.dev/metalfleet/metal/nn"
	"metalfleet.dev/metalfleet/metal/tensor"
	"metalfleet.dev/metalfleet/metal/vision"
)

// droppingCache counts the requests that are dropped.
type droppingCache struct {
	tensor.Cache
	dropped int
}

func (c *droppingCache) Drop(tensor.RequestID) { c.dropped++ }

// closingScope counts how often it is closed.
type closingScope struct {
	tensor.Scope
	closed int
}

func (s *closingScope) Close() { s.closed++ }

// A sequence that is preempted waits for no room, and the back end holds none of its images, until it
// runs again.
func TestAPreemptedSequenceHoldsNothing(t *testing.T) {
	cache, scope := &droppingCache{}, &closingScope{}
	image := &promptImage{span: vision.Span{Rows: 2, Columns: 2}, scope: scope, encoding: &nn.Encoding{}, waitsSince: time.Now()}
	s, other := &sequence{id: 1, prompt: 8, images: &promptImages{list: []*promptImage{image}, processor: &imageProcessor{scaled: newScaledImages(0)}}}, &sequence{id: 2}
	held := &sequences{byID: map[batch.ID]*sequence{1: s, 2: other}, kv: cache}
	b := &blocks{sequences: held, pending: []batch.ID{2, 1}, later: []batch.ID{1}, roomless: []wantedImage{{s, image}}}
	l := &loop{shared: &shared{}, sequences: held, blocks: b}
	l.preemptAll([]batch.ID{1})
	if cache.dropped != 1 || scope.closed != 1 || image.encoding != nil || !image.waitsSince.IsZero() {
		t.Errorf("%d requests are dropped and %d scopes closed, want one of each; the image is %+v", cache.dropped, scope.closed, image)
	}
	if len(b.pending) != 1 || b.pending[0] != 2 || len(b.later) != 0 || len(b.roomless) != 0 {
		t.Errorf("%v wait to be restored, %v of them for steps, and %d images for memory", b.pending, b.later, len(b.roomless))
	}
}
