package proxy

import (
	"errors"
	"io"
	"sync/atomic"
	"time"

	"metalfleet.dev/metalfleet/api/openai"
)

const (
	// defaultHeldBytes of bodies are kept at once: a quarter of the memory that
	// the chart gives a gateway.
	defaultHeldBytes = 256 << 20
	// freeBytes of each body are not counted: so much every connection may cost,
	// and ordinary requests get through while somebody uploads.
	freeBytes = 64 << 10
	// crowdedRetry is what Retry-After says while no more is kept.
	crowdedRetry = time.Second
)

// errCrowded says that the bodies of other requests take all the room.
var errCrowded = errors.New("the bodies of other requests use all available memory")

// bodies is the room for the bodies of all requests together: one of them is
// bounded, and a thousand of that size would end the gateway.
type bodies struct {
	most int64
	held atomic.Int64
}

// read takes a body of at most limit bytes in. Its room is counted as the bytes
// come, so that a promised length holds nothing, and given back by release.
func (b *bodies) read(from io.Reader, promised, limit int64) (body []byte, release func(), err error) {
	k := &kept{bodies: b, from: from}
	body, err = openai.ReadBody(k, promised, limit)
	if err != nil {
		k.release()
		if errors.Is(err, errCrowded) {
			err = openai.Overloaded(crowdedRetry)
		}
		return nil, nil, err
	}
	return body, k.release, nil
}

// kept is one body on its way in.
type kept struct {
	*bodies
	from io.Reader
	// came is what was read, counted what of it takes room.
	came, counted int64
}

// Read counts what it passes on.
func (k *kept) Read(p []byte) (int, error) {
	n, err := k.from.Read(p)
	k.came += int64(n)
	if more := k.came - freeBytes - k.counted; more > 0 {
		k.counted += more
		if k.held.Add(more) > k.most {
			return n, errCrowded
		}
	}
	return n, err
}

func (k *kept) release() {
	k.held.Add(-k.counted)
	k.counted = 0
}
