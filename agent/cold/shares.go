package cold

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"metalfleet.dev/metalfleet/metal/kv"
	blocks "metalfleet.dev/metalfleet/metal/kv/cold"
)

// idleAfter is how long after its last use a holder keeps its share of the disk
// against others.
const idleAfter = 24 * time.Hour

// holder owns a share of the disk: a tenant, over all models together, or a model
// (kv.Origin.Model, before its last slash) if requests name no tenant. Else each edit
// of a chat template would have a share.
type holder struct {
	tenant kv.Tenant
	model  string
}

func (b *books) holderOf(n blocks.Namespace, t kv.Tenant) holder {
	if t != 0 {
		return holder{tenant: t}
	}
	model := b.origins[n].Model
	if last := strings.LastIndexByte(model, '/'); last >= 0 {
		model = model[:last]
	}
	return holder{model: model}
}

// used records when a block was used.
func (b *books) used(id blocks.ID, at time.Time) {
	if h := b.holderOf(id.Namespace, id.Key.Tenant()); at.After(b.lastUse[h]) {
		b.lastUse[h] = at
	}
}

// forget drops the last use of holders without blocks.
func (b *books) forget() {
	held := map[holder]bool{}
	for p := range b.index.Tenants() {
		held[b.holderOf(p.Namespace, p.Tenant)] = true
	}
	maps.DeleteFunc(b.lastUse, func(h holder, _ time.Time) bool { return !held[h] })
}

// fairly returns which blocks of the namespaces of among to remove so that at
// most target bytes stay: those of idle holders, then those of the holders with
// the most bytes, down to one level for all of them. So a single tenant may fill
// the disk, and loses only the bytes above an equal share when others need space.
// Call the result once for each block, in the order of their last use.
func (b *books) fairly(target int64, among func(blocks.Namespace) bool, now time.Time) func(blocks.Entry) bool {
	held, over := map[holder]int64{}, -target
	for p, sum := range b.index.Tenants() {
		if among(p.Namespace) {
			held[b.holderOf(p.Namespace, p.Tenant)] += sum.Bytes
			over += sum.Bytes
		}
	}
	left := excess(held, func(h holder) bool { return now.Sub(b.lastUse[h]) >= idleAfter }, over)
	return func(e blocks.Entry) bool {
		h := b.holderOf(e.ID.Namespace, e.ID.Key.Tenant())
		if !among(e.ID.Namespace) || left[h] <= 0 {
			return false
		}
		left[h] -= e.Bytes
		return true
	}
}

// excess returns how many bytes each holder gives up so that the sum is over.
func excess(held map[holder]int64, idle func(holder) bool, over int64) map[holder]int64 {
	out := map[holder]int64{}
	var active []holder
	for h, bytes := range held {
		if idle(h) {
			out[h] = bytes
			over -= bytes
		} else {
			active = append(active, h)
		}
	}
	if over <= 0 {
		return out
	}
	slices.SortFunc(active, func(a, b holder) int { return cmp.Compare(held[b], held[a]) })
	var sum int64
	for i, h := range active { // the first i+1 shrink to the level of the next one, or not that far
		sum += held[h]
		var next int64
		if i+1 < len(active) {
			next = held[active[i+1]]
		}
		if n := int64(i + 1); sum-n*next >= over || next == 0 {
			level := max(0, (sum-over)/n)
			for _, h := range active[:i+1] {
				out[h] = held[h] - level
			}
			return out
		}
	}
	return out
}
