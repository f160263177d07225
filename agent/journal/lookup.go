package journal

import "slices"

// Engine finds the engine of a replica and epoch; nil if there is none.
func (s State) Engine(uid string, epoch int64) *Engine {
	i := slices.IndexFunc(s.Engines, func(e Engine) bool { return e.ReplicaUID == uid && e.Epoch == epoch })
	if i < 0 {
		return nil
	}
	return &s.Engines[i]
}

// PutEngine adds an engine or replaces the one of its replica and epoch.
func (s *State) PutEngine(e Engine) {
	if old := s.Engine(e.ReplicaUID, e.Epoch); old != nil {
		*old = e
		return
	}
	s.Engines = append(s.Engines, e)
}

// DropEngine forgets one engine of a replica and epoch, and none that was started
// after it.
func (s *State) DropEngine(uid string, epoch, load int64) {
	s.Engines = slices.DeleteFunc(s.Engines, func(e Engine) bool { return e.ReplicaUID == uid && e.Epoch == epoch && e.Load == load })
}

// Replica finds what is remembered of a replica and epoch, and begins it if
// nothing is.
func (s *State) Replica(uid string, epoch int64) *Replica {
	i := slices.IndexFunc(s.Replicas, func(r Replica) bool { return r.ReplicaUID == uid && r.Epoch == epoch })
	if i < 0 {
		s.Replicas = append(s.Replicas, Replica{ReplicaUID: uid, Epoch: epoch})
		i = len(s.Replicas) - 1
	}
	return &s.Replicas[i]
}

// DropReplica forgets a replica and epoch.
func (s *State) DropReplica(uid string, epoch int64) {
	s.Replicas = slices.DeleteFunc(s.Replicas, func(r Replica) bool { return r.ReplicaUID == uid && r.Epoch == epoch })
}

// bound cuts texts that an earlier agent kept at any length.
func (r *Replica) bound() {
	if r.Refused != nil {
		*r.Refused = r.Refused.Bounded()
	}
	if f := r.LastFailure; f != nil {
		short := Refusal{Reason: f.Reason, Message: f.Message}.Bounded()
		f.Reason, f.Message = short.Reason, short.Message
	}
}
