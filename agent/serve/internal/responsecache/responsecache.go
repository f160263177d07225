// Package responsecache keeps the responses of this Mac, so that clients can
// retrieve and continue them.
//
// It owns their limits: a maximum age and a maximum number of bytes; above that,
// the tenant with the most bytes loses its oldest response. Everything that a
// response shows of its request counts; an item that several responses of a
// conversation share counts once. A tenant cannot see another tenant's responses:
// they do not exist for it. Nothing is written to disk, so a restart of the agent
// removes all responses.
//
// Start reading at Cache.
package responsecache

import (
	"container/list"
	"iter"
	"math"
	"slices"
	"sync"
	"time"

	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/api/responses"
)

// entryBytes is the approximate size of an entry without its texts, and partBytes
// that of each item and tool.
const (
	entryBytes = 4 << 10
	partBytes  = 256
)

// sweepEvery is how often expired responses are removed: a request may look up
// thousands of items.
const sweepEvery = time.Second

// Entry is one response.
type Entry struct {
	Tenant string
	// Proof that this Mac was sent the request, for a gateway; empty if the id names the Mac.
	Proof string
	// Response as a client sees it, and Input, the items that it answers.
	Response responses.Response
	Input    []responses.Item
	// Talk is the complete conversation including the answer, without the
	// instructions, which belong to one response.
	Talk []responses.Item
	// Cancel ends a response in progress.
	Cancel func()
	// Shown is the length of the JSON of Response before it has output; 0 if that is not known.
	Shown int64
}

// bytes is the size of an entry without its items, as the JSON of everything that
// the response shows of its request.
func (e *Entry) bytes() int64 {
	n := int64(entryBytes)
	for range e.items() {
		n += partBytes
	}
	for _, t := range e.Response.Tools {
		n += partBytes * int64(1+len(t.Tools))
	}
	if e.Shown > 0 {
		return n + e.Shown
	}
	shown := e.Response
	shown.Output = nil
	encoded, err := openai.Marshal(shown)
	if err != nil {
		return math.MaxInt64 / 2 // a response that cannot be encoded is not kept
	}
	return n + int64(len(encoded))
}

// items returns the input, the output, and the conversation.
func (e *Entry) items() iter.Seq[responses.Item] {
	return func(yield func(responses.Item) bool) {
		for _, all := range [][]responses.Item{e.Input, e.Response.Output, e.Talk} {
			for _, i := range all {
				if !yield(i) {
					return
				}
			}
		}
	}
}

// Cache is safe for concurrent use. The zero value keeps nothing.
type Cache struct {
	// Bytes and Age are limits.
	Bytes int64
	Age   time.Duration
	// Now returns the time; nil means time.Now.
	Now func() time.Time

	mu      sync.Mutex // guards all below
	byID    map[string]*list.Element
	tenants map[string]*share
	held    int64
	swept   time.Time
	// items of all responses, by their ids.
	items map[string]*shared
}

// shared is an item and the number of responses that contain it.
type shared struct {
	item   responses.Item
	bytes  int64
	tenant string
	uses   int
}

// share is the part of one tenant.
type share struct {
	order list.List // of *kept, the oldest first
	bytes int64
}

type kept struct {
	id    string
	entry Entry
	// bytes are those of the entry without its items, and items those of its items, each once.
	bytes, items int64
	since        time.Time
}

func (s *Cache) now() time.Time {
	if s.Now == nil {
		return time.Now()
	}
	return s.Now()
}

// Put adds a new response. It returns false if the response exceeds the limit.
func (s *Cache) Put(e Entry) bool {
	bytes, items := e.bytes(), s.sizes(&e) // which take long for a large one
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.put(e, bytes, items, s.now())
}

// sizes returns the size of each item of an entry, by its id. Only items that are not kept yet are
// measured: a short request may continue a long conversation.
func (s *Cache) sizes(e *Entry) map[string]int64 {
	sizes := map[string]int64{}
	s.mu.Lock()
	for i := range e.items() {
		if use := s.items[i.ID]; use != nil {
			sizes[i.ID] = use.bytes
		}
	}
	s.mu.Unlock()
	for i := range e.items() {
		if _, known := sizes[i.ID]; !known {
			sizes[i.ID] = i.Bytes()
		}
	}
	return sizes
}

// End stores the final state of a response that is still kept and in progress, and adds its
// output to its conversation; one that was deleted or canceled meanwhile stays as it is.
func (s *Cache) End(r responses.Response) {
	before, e := s.inProgress(r.ID)
	if before == nil {
		return
	}
	e.Response, e.Cancel = r, nil
	e.Talk = slices.Concat(e.Talk, r.Output)
	bytes, items := e.bytes(), s.sizes(&e)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byID[r.ID] == before && before.Value.(*kept).entry.Response.Status == responses.StatusInProgress {
		s.drop(before)
		s.put(e, bytes, items, before.Value.(*kept).since)
	}
}

// inProgress returns a response in progress; nil if it is not kept or has ended.
func (s *Cache) inProgress(id string) (at *list.Element, e Entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, ok := s.byID[id]
	if !ok || at.Value.(*kept).entry.Response.Status != responses.StatusInProgress {
		return nil, Entry{}
	}
	return at, at.Value.(*kept).entry
}

// Cancel ends a tenant's response in progress. A finished one is not changed.
func (s *Cache) Cancel(id, tenant string) (e Entry, found, cancelled bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trim()
	at, ok := s.byID[id]
	if !ok || at.Value.(*kept).entry.Tenant != tenant {
		return Entry{}, false, false
	}
	k := at.Value.(*kept)
	if k.entry.Response.Status != responses.StatusInProgress {
		return k.entry, true, false
	}
	k.entry.Response.Status = responses.StatusCancelled
	return k.entry, true, true
}

// put is Put of an entry with items of these sizes; the caller holds mu.
func (s *Cache) put(e Entry, bytes int64, sizes map[string]int64, since time.Time) bool {
	id := e.Response.ID
	k := &kept{id: id, entry: e, bytes: bytes, since: since}
	for _, n := range sizes {
		k.items += n
	}
	if k.bytes+k.items > s.Bytes {
		return false
	}
	if s.byID == nil {
		s.byID, s.items, s.tenants = map[string]*list.Element{}, map[string]*shared{}, map[string]*share{}
	}
	if s.tenants[e.Tenant] == nil {
		s.tenants[e.Tenant] = &share{}
	}
	s.byID[id] = s.tenants[e.Tenant].order.PushBack(k)
	s.count(e.Tenant, k.bytes)
	for i := range e.items() {
		use := s.items[i.ID]
		if use == nil {
			use = &shared{item: i, bytes: sizes[i.ID], tenant: e.Tenant}
			s.items[i.ID] = use
			s.count(use.tenant, use.bytes)
		}
		use.uses++
	}
	s.trim()
	_, has := s.byID[id]
	return has
}

// count changes a tenant's bytes; the caller holds mu.
func (s *Cache) count(tenant string, bytes int64) {
	s.held += bytes
	if t := s.tenants[tenant]; t != nil {
		t.bytes += bytes
	}
}

// trim removes responses that are too old, and while there are too many bytes the
// oldest of the tenant with the most. The caller holds mu.
func (s *Cache) trim() {
	if now := s.now(); now.Sub(s.swept).Abs() >= sweepEvery {
		s.swept = now
		s.dropOld(now)
	}
	s.shrink(s.Bytes)
}

// shrink removes the oldest response of the tenant with the most bytes while there are more bytes
// than that. The caller holds mu.
func (s *Cache) shrink(most int64) {
	for s.held > most {
		var most *share
		for _, t := range s.tenants {
			if most == nil || t.bytes > most.bytes {
				most = t
			}
		}
		s.drop(most.order.Front())
	}
}

// Halve removes the oldest responses of the tenants with the most bytes, half of all bytes.
func (s *Cache) Halve() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shrink(s.held / 2)
}

// dropOld removes responses that are too old; the caller holds mu.
func (s *Cache) dropOld(now time.Time) {
	for _, t := range s.tenants {
		for e := t.order.Front(); e != nil; {
			next := e.Next()
			if now.Sub(e.Value.(*kept).since) >= s.Age {
				s.drop(e)
			}
			e = next
		}
	}
}

func (s *Cache) drop(e *list.Element) {
	tenant := e.Value.(*kept).entry.Tenant
	k := s.tenants[tenant].order.Remove(e).(*kept)
	delete(s.byID, k.id)
	defer func() {
		if s.tenants[tenant].order.Len() == 0 {
			delete(s.tenants, tenant)
		}
	}()
	for i := range k.entry.items() {
		use := s.items[i.ID]
		if use.uses--; use.uses == 0 {
			delete(s.items, i.ID)
			s.count(use.tenant, -use.bytes)
		}
	}
	s.count(tenant, -k.bytes)
}

// Item returns an item of a tenant's responses.
func (s *Cache) Item(id, tenant string) (responses.Item, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trim()
	use, ok := s.items[id]
	if !ok || use.tenant != tenant {
		return responses.Item{}, false
	}
	return use.item, true
}

// Get returns a tenant's response.
func (s *Cache) Get(id, tenant string) (Entry, bool) {
	e, _, ok := s.Sized(id, tenant)
	return e, ok
}

// Sized is Get, with the size of the entry and its items, as JSON.
func (s *Cache) Sized(id, tenant string) (e Entry, bytes int64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trim()
	at, ok := s.byID[id]
	if !ok || at.Value.(*kept).entry.Tenant != tenant {
		return Entry{}, 0, false
	}
	k := at.Value.(*kept)
	return k.entry, k.bytes + k.items, true
}

// Size returns the size of a tenant's response with its items, as JSON; 0 for one that is
// not kept.
func (s *Cache) Size(id, tenant string) int64 {
	_, bytes, _ := s.Sized(id, tenant)
	return bytes
}

// Delete removes a tenant's response.
func (s *Cache) Delete(id, tenant string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.byID[id]
	if !ok || e.Value.(*kept).entry.Tenant != tenant {
		return false
	}
	s.drop(e)
	return true
}

// Held returns how many bytes and responses are kept.
func (s *Cache) Held() (bytes int64, count int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trim()
	return s.held, len(s.byID)
}
