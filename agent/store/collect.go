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

// Marks are the watermarks of the disk, in percent of it that are in use: from
// High on, weights that nobody wants go until no more than Low are. A High of 0
// means that there are none.
type Marks struct{ High, Low int }

// Check refuses watermarks that cannot be meant.
func (m Marks) Check() error {
	if m.High != 0 && (m.Low < 1 || m.Low >= m.High || m.High > 100) {
		return fmt.Errorf("watermarks of %d and %d percent of the disk: want 1 to 100 with the low one less than the high one, or a high one of 0 to disable them", m.High, m.Low)
	}
	return nil
}

// Disk is how large the disk of the store is, and what of it is free.
type Disk struct{ Free, Total int64 }

// deficit is how much has to go; 0 below the high mark.
func (m Marks) deficit(d Disk) int64 {
	used := d.Total - d.Free
	if m.High == 0 || used < d.Total/100*int64(m.High) {
		return 0
	}
	return max(0, used-d.Total/100*int64(m.Low))
}

// above is by how much more bytes would take the disk over the high mark.
func (m Marks) above(d Disk, more int64) int64 {
	if m.High == 0 {
		return 0
	}
	return max(0, d.Total-d.Free+more-d.Total/100*int64(m.High))
}

// unwanted are weights that may go.
type unwanted struct {
	digest string
	source string
	used   time.Time
	files  []linkedFile
}

// linkedFile is a file of weights with the number of its names on the disk: it
// gives nothing back while one of them is left.
type linkedFile struct {
	inode uint64
	bytes int64
	links int
}

// choose picks what goes, the oldest use first, until that many bytes come back
// or nothing is left, and says how many do.
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

// own is what weights give back if they alone go.
func own(files []linkedFile) int64 {
	_, freed := choose([]unwanted{{files: files}}, 1)
	return freed
}

// maxCollections is how many of the last ones are told.
const maxCollections = 8

// Collect notes which weights are in use and, from the high mark on, removes
// those that nobody wants, the oldest use first.
func (s *Store) Collect() error {
	s.room.Lock()
	defer s.room.Unlock()
	spared, known := s.spared()
	if !known {
		return nil
	}
	now := time.Now()
	for _, digest := range s.shelf.digests() {
		if spared(digest) {
			s.shelf.use(digest, now)
		}
	}
	d, err := s.opt.Disk()
	if err != nil {
		return download.DiskError(err, "measure the room for")
	}
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

// makeRoom sees to it that a download finds its place on the disk, beside what
// other downloads still bring, and promises it that. Where all that may go would
// not do, nothing goes. What is fetched ahead finds it below the high mark.
func (s *Store) makeRoom(f *flight, need int64) error {
	s.room.Lock()
	defer s.room.Unlock()
	ahead := s.opt.Ahead != nil && s.opt.Ahead(f.digest)
	d, lacking, err := s.lacking(need, ahead)
	var can int64
	if err == nil && lacking > 0 {
		var picked []unwanted
		if picked, can = choose(s.unwanted(), lacking); can >= lacking {
			if err = s.discard(picked, v1alpha1.CollectedForDownload); err == nil {
				d, lacking, err = s.lacking(need, ahead)
			}
		}
	}
	if err != nil {
		return download.DiskError(err, "make room for")
	}
	if lacking > 0 {
		above := ""
		if ahead {
			above = fmt.Sprintf(", and prefetching may use no more than %d percent of the disk", s.opt.Marks.High)
		}
		return &download.Error{
			Reason: v1alpha1.ReasonDiskFull,
			Message: fmt.Sprintf("the download needs %s but the Mac has %s free (%s stay reserved, other downloads need %s, and evicting unused weights would free %s%s); free disk space on the Mac or delete models it no longer needs",
				v1alpha1.FormatBytes(need), v1alpha1.FormatBytes(d.Free), v1alpha1.FormatBytes(diskMargin), v1alpha1.FormatBytes(s.promised()), v1alpha1.FormatBytes(can), above),
		}
	}
	f.awaits.Store(need)
	return nil
}

// lacking is what the disk has too little for a download that was promised
// nothing yet; one ahead may not take it over the high mark either.
func (s *Store) lacking(need int64, ahead bool) (Disk, int64, error) {
	d, err := s.opt.Disk()
	out := max(0, need+diskMargin+s.promised()-d.Free)
	if ahead {
		out = max(out, s.opt.Marks.above(d, need+s.promised()))
	}
	return d, out, err
}

// promised is what downloads under way still bring.
func (s *Store) promised() (sum int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.flights {
		sum += f.awaits.Load()
	}
	return sum
}

// spared says which weights are wanted, apart from claims and downloads, if
// that is known.
func (s *Store) spared() (func(digest string) bool, bool) {
	if s.opt.Spared == nil {
		return nil, false
	}
	return s.opt.Spared()
}

// unwanted are the weights that may go now: none while it is not known what is
// wanted.
func (s *Store) unwanted() (all []unwanted) {
	spared, known := s.spared()
	if !known {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.shelf.all() {
		if d := e.Record.Digest; !spared(d) && !s.inUse(d) {
			all = append(all, unwanted{d, e.Record.Source, e.used, s.shelf.links(e)})
		}
	}
	return all
}

// inUse says whether weights are claimed or being fetched; the caller holds mu.
func (s *Store) inUse(digest string) bool {
	return len(s.holds[digest]) > 0 || s.flying(digest)
}

// discard removes weights and notes what came back. What was claimed meanwhile
// stays.
func (s *Store) discard(picked []unwanted, why v1alpha1.CollectionReason) error {
	for _, u := range picked {
		bytes, err := s.Remove(u.digest)
		if errors.Is(err, ErrInUse) {
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

// say keeps what is wrong with the disk; empty while nothing is.
func (s *Store) say(message string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.message = message
}

// Status are the figures of the disk. What cannot be measured is left out.
func (s *Store) Status() v1alpha1.MacDisk {
	s.mu.Lock()
	out := v1alpha1.MacDisk{Collected: *s.collected.DeepCopy(), Message: s.message}
	s.mu.Unlock()
	out.WeightsBytes = s.WeightsBytes()
	if d, err := s.opt.Disk(); err == nil {
		out.FreeBytes, out.TotalBytes = d.Free, d.Total
	}
	return out
}
