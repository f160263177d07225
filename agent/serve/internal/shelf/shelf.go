// Package shelf keeps the responses of this Mac, so that clients can ask for them
// again and go on from them.
//
// It owns how long that is: at most an age, and as many bytes as it may hold;
// where they are used up, the tenant that takes the most loses its oldest. All
// that a response shows of its request is counted; an item that several responses
// share, as those of one conversation do, counts once. It refuses to show
// one tenant another's responses: they are as if they did not exist. It keeps
// nothing on a disk, so an agent's restart forgets all of them.
//
// Start reading at Shelf.
package shelf

import (
	"container/list"
	"iter"
	"math"
	"sync"
	"time"

	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/api/responses"
)

// entryBytes is about what an entry takes without its texts, and partBytes what
// each item and each tool takes.
const (
	entryBytes = 4 << 10
	partBytes  = 256
)

// sweepEvery is how often all responses are compared with their age: a request may
// ask for thousands of items.
const sweepEvery = time.Second

// Entry is one response.
type Entry struct {
	Tenant string
	// Response as a client sees it, and Input what it answered to.
	Response responses.Response
	Input    []responses.Item
	// Talk is the whole conversation up to and with the answer, without the
	// instructions, which are those of one response.
	Talk []responses.Item
	// Cancel ends a response in progress.
	Cancel func()
}

// bytes is what an entry takes by itself, without its items: all that the
// response shows of the request counts, in the size of its JSON.
func (e *Entry) bytes() int64 {
	n := int64(entryBytes)
	for range e.items() {
		n += partBytes
	}
	for _, t := range e.Response.Tools {
		n += partBytes * int64(1+len(t.Tools))
	}
	shown := e.Response
	shown.Output = nil
	encoded, err := openai.Marshal(shown)
	if err != nil {
		return math.MaxInt64 / 2 // what cannot be shown is not kept
	}
	return n + int64(len(encoded))
}

// items are those that the response was given, its output, and the conversation.
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

// itemBytes are the texts of its items, each once.
func (e *Entry) itemBytes() (n int64) {
	seen := map[string]bool{}
	for i := range e.items() {
		if !seen[i.ID] {
			seen[i.ID] = true
			n += i.Bytes()
		}
	}
	return n
}

// Shelf is for many goroutines. The zero value keeps nothing.
type Shelf struct {
	// Bytes and Age that are kept at most.
	Bytes int64
	Age   time.Duration
	// Now tells the time; nil means time.Now.
	Now func() time.Time

	mu      sync.Mutex // guards all below
	byID    map[string]*list.Element
	tenants map[string]*share
	held    int64
	swept   time.Time
	// items of all responses, by their ids.
	items map[string]*shared
}

// shared is an item, and how often responses have it.
type shared struct {
	item   responses.Item
	tenant string
	uses   int
}

// share is what a tenant has.
type share struct {
	order list.List // of *kept, the oldest first
	bytes int64
}

type kept struct {
	id    string
	entry Entry
	bytes int64
	since time.Time
}

func (s *Shelf) now() time.Time {
	if s.Now == nil {
		return time.Now()
	}
	return s.Now()
}

// Put keeps a new response. It says whether there is room for it at all.
func (s *Shelf) Put(e Entry) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.put(e, s.now())
}

// End keeps a response as it ended, if it is still kept and in progress: who
// deleted or cancelled it meanwhile meant it.
func (s *Shelf) End(e Entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if before, ok := s.byID[e.Response.ID]; ok && before.Value.(*kept).entry.Response.Status == responses.StatusInProgress {
		s.drop(before)
		s.put(e, before.Value.(*kept).since)
	}
}

// Cancel ends a tenant's response in progress. One that has ended stays as it is.
func (s *Shelf) Cancel(id, tenant string) (e Entry, found, cancelled bool) {
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

// put is Put; the lock is held.
func (s *Shelf) put(e Entry, since time.Time) bool {
	id := e.Response.ID
	k := &kept{id, e, e.bytes(), since}
	if k.bytes+e.itemBytes() > s.Bytes {
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
			use = &shared{item: i, tenant: e.Tenant}
			s.items[i.ID] = use
			s.count(use.tenant, i.Bytes())
		}
		use.uses++
	}
	s.trim()
	_, has := s.byID[id]
	return has
}

// count changes what a tenant has; the lock is held.
func (s *Shelf) count(tenant string, bytes int64) {
	s.held += bytes
	if t := s.tenants[tenant]; t != nil {
		t.bytes += bytes
	}
}

// trim removes what is too old, and what there is no room for: of the tenant with the
// most bytes the oldest. The lock is held.
func (s *Shelf) trim() {
	if now := s.now(); now.Sub(s.swept).Abs() >= sweepEvery {
		s.swept = now
		s.dropOld(now)
	}
	for s.held > s.Bytes {
		var most *share
		for _, t := range s.tenants {
			if most == nil || t.bytes > most.bytes {
				most = t
			}
		}
		s.drop(most.order.Front())
	}
}

// dropOld removes what is too old; the lock is held.
func (s *Shelf) dropOld(now time.Time) {
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

func (s *Shelf) drop(e *list.Element) {
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
			s.count(use.tenant, -use.item.Bytes())
		}
	}
	s.count(tenant, -k.bytes)
}

// Item finds an item of a tenant's responses.
func (s *Shelf) Item(id, tenant string) (responses.Item, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trim()
	use, ok := s.items[id]
	if !ok || use.tenant != tenant {
		return responses.Item{}, false
	}
	return use.item, true
}

// Get finds a tenant's response.
func (s *Shelf) Get(id, tenant string) (Entry, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trim()
	e, ok := s.byID[id]
	if !ok || e.Value.(*kept).entry.Tenant != tenant {
		return Entry{}, false
	}
	return e.Value.(*kept).entry, true
}

// Delete forgets a tenant's response.
func (s *Shelf) Delete(id, tenant string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.byID[id]
	if !ok || e.Value.(*kept).entry.Tenant != tenant {
		return false
	}
	s.drop(e)
	return true
}

// Held are the bytes that are kept, and how many responses.
func (s *Shelf) Held() (bytes int64, count int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trim()
	return s.held, len(s.byID)
}
