package footprint

import "metalfleet.dev/metalfleet/api/model"

const (
	// leastQueue is worth its memory on every Mac; queueBlocks of the largest kind
	// are one that is written and one that waits.
	leastQueue, queueBlocks = 32 * MiB, 2
	// queueHeld is how often the queue's bytes are held: what was written lives on
	// until the collector sees it.
	queueHeld = 2
	// The longest blocks of each kind of model (metal/kv, ShapeOf).
	recurrentBlock, rotatingBlock, slicedBlock = 2048, 1024, 256
)

// CacheQueue is the size of the queue of a disk cache in bytes, a safe
// estimate: a block that does not fit is not kept.
func CacheQueue(f model.Facts) (int64, error) {
	if err := f.Validate(); err != nil {
		return 0, err
	}
	tokens := int64(slicedBlock)
	switch {
	case f.EncoderLayers > 0:
		return 0, nil // it keeps nothing
	case f.RecurrentLayers > 0:
		tokens = recurrentBlock
	case f.WindowLayers > 0:
		tokens = rotatingBlock
	}
	largest := leastQueue
	for _, b := range table() {
		held := b.kernels.held(f, 1, tokens)
		queue := product(queueBlocks, held.bytes)
		if err := check("a disk cache", tokens, held, queue); err != nil {
			return 0, err
		}
		largest = max(largest, queue.bytes)
	}
	return largest, nil
}

// CacheQueueHeld is the process memory that a queue of this many bytes may
// take.
func CacheQueueHeld(queue int64) int64 { return queueHeld * queue }
