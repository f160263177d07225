package store

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// Marks are the watermarks of the disk, in percent in use: above High unused
// weights are evicted until at most Low are in use. A High of 0 disables
// eviction.
type Marks struct{ High, Low int }

// SetMarks changes the watermarks; invalid ones are refused. It waits for an eviction.
func (s *Store) SetMarks(m Marks) error {
	if err := m.Check(); err != nil {
		return err
	}
	s.room.Lock()
	defer s.room.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opt.Marks = m
	return nil
}

// Check rejects invalid watermarks.
func (m Marks) Check() error {
	if m.High != 0 && (m.Low < 1 || m.Low >= m.High || m.High > 100) {
		return fmt.Errorf("watermarks of %d and %d percent of the disk: want 1 to 100 with the low one less than the high one, or a high one of 0 to disable them", m.High, m.Low)
	}
	return nil
}

// Disk is the size of the store's disk, and how much of it is free.
type Disk struct{ Free, Total int64 }

// deficit is how many bytes to evict; 0 below the high watermark.
func (m Marks) deficit(d Disk) int64 {
	used := d.Total - d.Free
	if m.High == 0 || used < d.Total/100*int64(m.High) {
		return 0
	}
	return max(0, used-d.Total/100*int64(m.Low))
}

// above is by how many bytes more would exceed the high watermark.
func (m Marks) above(d Disk, more int64) int64 {
	if m.High == 0 {
		return 0
	}
	return max(0, d.Total-d.Free+more-d.Total/100*int64(m.High))
}

// unwanted are weights that may be evicted.
type unwanted struct {
	digest string
	source string
	used   time.Time
	files  []linkedFile
}

// linkedFile is a file of weights with its number of hard links: its space is
// freed with the last one.
type linkedFile struct {
	inode uint64
	bytes int64
	links int
}

// choose picks weights to evict, least recently used first, until need bytes are
// freed or none is left, and returns how many bytes are freed.
func choose(all []unwanted, need int64) (picked []unwanted, freed int64) {
	slices.SortFunc(all, func(a, b unwanted) int {
		return cmp.Or(a.used.Compare(b.used), cmp.Compare(a.digest, b.digest))
	})
	taken := map[uint64]int{}
	for _, u := range all {
		if freed >= need {
			break
		}
		for _, f := range u.files {
			if taken[f.inode]++; taken[f.inode] == f.links {
				freed += f.bytes
			}
		}
		picked = append(picked, u)
	}
	return picked, freed
}

// own is how many bytes are freed if these weights alone are evicted.
func own(files []linkedFile) int64 {
	_, freed := choose([]unwanted{{files: files}}, 1)
	return freed
}

// maxCollections is how many evictions the status lists.
const maxCollections = 8

// Collect looks at the files of some weights, records which are in use, and evicts
// unused ones: those beyond the maximum number and, above the high watermark, the
// least recently used.
func (s *Store) Collect() error {
	s.objects.look(filesPerLook)
	s.room.Lock()
	defer s.room.Unlock()
	spared, known := s.opt.spared()
	if !known {
		return nil
	}
	now := time.Now()
	for _, digest := range s.objects.digests() {
		if spared(digest) {
			s.objects.use(digest, now)
		}
	}
	if err := s.thin(); err != nil {
		return err
	}
	d, err := s.opt.Disk()
	if err != nil {
		return download.DiskError(err, "measure the room for")
	}
	d.Free += s.opt.cached() // it shrinks by itself
	need := s.opt.Marks.deficit(d)
	if need == 0 {
		s.say("")
		return nil
	}
	picked, freed := choose(s.unwanted(), need)
	err = s.discard(picked, v1alpha1.CollectedForMark)
	if s.say(""); err == nil && freed < need {
		s.say(fmt.Sprintf("more than %d percent of the disk are in use and no weights can be evicted: all are assigned or pinned; free disk space on this Mac", s.opt.Marks.Low))
	}
	return err
}

// makeRoom reserves disk space for a download and makes room for it, of blocks of
// the disk cache first and then of unused weights; if that would not be enough,
// nothing is removed. For a download ahead of use the disk must stay below the high
// watermark.
func (s *Store) makeRoom(f *sharedDownload, need int64) error {
	s.room.Lock()
	defer s.room.Unlock()
	ahead := s.opt.Ahead != nil && s.opt.Ahead(f.digest)
	f.awaits.Store(need) // from now on the cache leaves it free
	d, lacking, err := s.lacking(ahead)
	var can int64
	if err == nil && lacking > 0 {
		if can, err = s.free(lacking); err == nil && can >= lacking {
			d, lacking, err = s.lacking(ahead)
		}
	}
	if err == nil && lacking <= 0 {
		return nil
	}
	f.awaits.Store(0)
	if err != nil {
		return download.DiskError(err, "make room for")
	}
	above := ""
	if ahead {
		above = fmt.Sprintf(", and prefetching may use no more than %d percent of the disk", s.opt.Marks.High)
	}
	return &download.Error{
		Reason: v1alpha1.ReasonDiskFull,
		Message: fmt.Sprintf("the download needs %s but the Mac has %s free (%s stay reserved, other downloads need %s, and evicting cached blocks and unused weights would free %s%s); free disk space on the Mac or delete models it no longer needs",
			v1alpha1.FormatBytes(need), v1alpha1.FormatBytes(d.Free), v1alpha1.FormatBytes(diskMargin), v1alpha1.FormatBytes(s.promised()), v1alpha1.FormatBytes(can), above),
	}
}

// free frees disk space, of the cache first because its blocks cost less than a
// download. It returns how many bytes that frees; if they are fewer than asked for,
// nothing was removed.
func (s *Store) free(bytes int64) (int64, error) {
	cached, all := s.opt.cached(), s.unwanted()
	if _, can := choose(all, bytes-cached); cached+can < bytes {
		return cached + can, nil
	}
	var given int64
	if cached > 0 {
		given = s.opt.Cache.GiveWay(min(bytes, cached))
	}
	picked, can := choose(all, bytes-given)
	return given + can, s.discard(picked, v1alpha1.CollectedForDownload)
}

// lacking is how many bytes the disk lacks for the downloads in progress; with one
// ahead of use it must not exceed the high watermark either.
func (s *Store) lacking(ahead bool) (Disk, int64, error) {
	d, err := s.opt.Disk()
	out := max(0, diskMargin+s.promised()-d.Free)
	if ahead {
		out = max(out, s.opt.Marks.above(d, s.promised()))
	}
	return d, out, err
}

// promised is how many bytes downloads in progress will still write.
func (s *Store) promised() (sum int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.downloads {
		sum += f.awaits.Load()
	}
	return sum
}

// spared returns which weights are wanted, apart from claims and downloads, and
// false if that is unknown.
func (o *Options) spared() (func(digest string) bool, bool) {
	if o.Spared == nil {
		return nil, false
	}
	return o.Spared()
}

// evictable are the records of weights that may be evicted now: none while it is
// unknown which are wanted.
func (s *Store) evictable() []entry {
	spared, known := s.opt.spared()
	if !known {
		return nil
	}
	all := s.objects.all()
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(all, func(e entry) bool { return spared(e.Record.Digest) || s.inUse(e.Record.Digest) })
}

// unwanted are the weights that may be evicted now, with their files as they are
// on the disk. Requests for weights do not wait for that.
func (s *Store) unwanted() (all []unwanted) {
	for _, e := range s.evictable() {
		all = append(all, unwanted{e.Record.Digest, e.Record.Source, e.used, s.objects.links(e)})
	}
	return all
}

// inUse reports whether weights are claimed or being downloaded; the caller holds
// mu.
func (s *Store) inUse(digest string) bool {
	return len(s.holds[digest]) > 0 || s.downloading(digest)
}

// discard removes weights and records how much that freed. Weights that were
// claimed meanwhile stay.
func (s *Store) discard(picked []unwanted, why v1alpha1.CollectionReason) error {
	for _, u := range picked {
		bytes, err := s.Remove(u.digest)
		if errors.Is(err, errInUse) {
			continue
		}
		if err != nil {
			return err
		}
		s.opt.Log.Info("Evicted unused weights", "digest", u.digest, "source", u.source, "bytes", bytes, "reason", why)
		s.note(v1alpha1.Collection{Digest: u.digest, Source: u.source, Bytes: bytes, Reason: why, Time: metav1.Now()})
	}
	return nil
}

func (s *Store) note(c v1alpha1.Collection) {
	s.mu.Lock()
	s.collected.Models++
	s.collected.Bytes += c.Bytes
	s.collected.Last = append([]v1alpha1.Collection{c}, s.collected.Last...)
	s.collected.Last = s.collected.Last[:min(len(s.collected.Last), maxCollections)]
	s.mu.Unlock()
	if s.opt.Collected != nil {
		s.opt.Collected(c)
	}
}

// say sets the status message about the disk; empty if there is no problem.
func (s *Store) say(message string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.message = message
}

// Status reports disk usage. Figures that cannot be measured are left out.
func (s *Store) Status() v1alpha1.MacDisk {
	s.mu.Lock()
	out := v1alpha1.MacDisk{Collected: *s.collected.DeepCopy(), Message: s.message}
	s.mu.Unlock()
	out.WeightsBytes, out.ReclaimableBytes = s.WeightsBytes(), reclaimable(s.stored())+s.opt.cached()
	if d, err := s.opt.Disk(); err == nil {
		out.FreeBytes, out.TotalBytes = d.Free, d.Total
	}
	return out
}
