package sample

// maxHeap gives ids in order of falling logits and, among equal ones, rising
// ids.
type maxHeap struct {
	ids    []int32
	logits []float32
}

// heapOf orders ids in place.
func heapOf(ids []int32, logits []float32) maxHeap {
	h := maxHeap{ids, logits}
	for i := len(ids)/2 - 1; i >= 0; i-- {
		h.down(i)
	}
	return h
}

func (h *maxHeap) before(a, b int32) bool {
	x, y := h.logits[a], h.logits[b]
	return x > y || (x == y && a < b)
}

func (h *maxHeap) pop() int32 {
	top := h.ids[0]
	n := len(h.ids) - 1
	h.ids[0] = h.ids[n]
	h.ids = h.ids[:n]
	h.down(0)
	return top
}

func (h *maxHeap) down(i int) {
	for {
		child := 2*i + 1
		if child >= len(h.ids) {
			return
		}
		if right := child + 1; right < len(h.ids) && h.before(h.ids[right], h.ids[child]) {
			child = right
		}
		if !h.before(h.ids[child], h.ids[i]) {
			return
		}
		h.ids[i], h.ids[child] = h.ids[child], h.ids[i]
		i = child
	}
}
