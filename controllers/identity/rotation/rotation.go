// Package rotation decides how the operator's authority passes from one root to
// the next without a handshake that fails.
//
// It owns the order of the steps and what each of them waits for. It refuses to
// let a root sign before gateways and living Macs trust it, and to drop one
// while a certificate of it can be valid, unless it is told to hurry. It is
// pure: it reads a state and a picture of the fleet, and speaks to nobody.
//
//	Settled --Begin--> Publishing --Spread--> Spreading --Sign--> Retiring --End--> Settled
//	                       ^---------Respread-----|
//
// Every step is one write of one Secret, so that an operator that ends between
// any two writes leaves a state that the next one goes on from.
//
// Start reading at Decide.
package rotation

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Root is what is decided by of a root certificate.
type Root struct {
	// Fingerprint is the SHA-256 of the certificate, in hex.
	Fingerprint         string
	NotBefore, NotAfter time.Time
}

// State is where the authority is.
type State struct {
	// Signing root of new certificates.
	Signing Root
	// IssuedUntil: no certificate that Signing signed ends later.
	IssuedUntil time.Time
	// Next root, which is trusted and signs nothing yet.
	Next *Root
	// SpreadSince is when gateways were first seen to be told of Next; zero:
	// they were not.
	SpreadSince time.Time
	// Old root, which is trusted and signs nothing any more.
	Old *Root
	// OldUntil: no certificate that Old signed ends later.
	OldUntil time.Time
	// Hurry: this rotation waits for nobody, because a key is known to others.
	Hurry bool
	// Handled and HandledAtOnce are the values of the annotations that a
	// rotation was begun for last.
	Handled, HandledAtOnce string
}

// Stage names where a rotation is.
type Stage string

// The stages. Of each Secret that is whole exactly one holds.
const (
	Settled    Stage = "Settled"    // one root, which signs
	Publishing Stage = "Publishing" // two roots; not every Secret names both
	Spreading  Stage = "Spreading"  // both are published; who trusts the next one is waited for
	Retiring   Stage = "Retiring"   // the next one signs; certificates of the old one are still valid
)

// Stages are all of them, in their order.
func Stages() []Stage { return []Stage{Settled, Publishing, Spreading, Retiring} }

// Stage says where the rotation is.
func (s State) Stage() Stage {
	switch {
	case s.Old != nil:
		return Retiring
	case s.Next == nil:
		return Settled
	case s.SpreadSince.IsZero():
		return Publishing
	}
	return Spreading
}

// World is what the fleet looks like.
type World struct {
	// Asked and AtOnce are the values of the annotations that ask for a
	// rotation, and for one that waits for nobody.
	Asked, AtOnce string
	// GatewaysTold: the gateways' Secret names the roots of the state.
	GatewaysTold bool
	Macs         []Mac
}

// Mac is what is decided by of a Mac.
type Mac struct {
	Name string
	// Told: its Secret names the roots of the state.
	Told bool
	// Lives: it was heard from within the last 180 s. A Mac that does not live
	// holds nothing up: it reads its Secret before it answers again.
	Lives bool
	// Confirmed: it says that it trusts the next root.
	Confirmed bool
}

// Policy is how rotations are paced.
type Policy struct {
	// Spread is how long gateways get to read a root before it signs.
	Spread time.Duration
	// SharePercent of the signing root's life is over when a rotation begins by
	// itself.
	SharePercent int
}

// Step is what is to be done.
type Step string

// The steps. Each is one write.
const (
	Wait     Step = ""
	Begin    Step = "Begin"    // make the next root and publish it beside the signing one
	Spread   Step = "Spread"   // note that gateways were told
	Respread Step = "Respread" // forget that: their Secret was changed meanwhile
	Sign     Step = "Sign"     // the next root signs from now on
	End      Step = "End"      // the old root is trusted no more
)

// Decision is a step, or what is waited for.
type Decision struct {
	Step Step
	// Hurry is for Begin: the rotation waits for nobody.
	Hurry bool
	// Why says, to a person, why it begins or what it waits for.
	Why string
	// Again is when to look again if nothing changes before; 0: never.
	Again time.Duration
	// Unconfirmed counts the living Macs that do not trust the next root yet.
	Unconfirmed int
}

// Decide says what is to be done now.
func Decide(now time.Time, s State, w World, p Policy) Decision {
	atOnce := w.AtOnce != "" && w.AtOnce != s.HandledAtOnce
	switch {
	case s.Old != nil:
		return retire(now, s, atOnce)
	case s.Next != nil && !atOnce:
		return spread(now, s, w, p)
	}
	return begin(now, s, w, p, atOnce)
}

// begin asks whether it is time for the next root. One that was made and has
// signed nothing gives way to a root that is made at once: whoever has the key
// of one has that of the other.
func begin(now time.Time, s State, w World, p Policy, atOnce bool) Decision {
	due := s.Signing.NotBefore.Add(s.Signing.NotAfter.Sub(s.Signing.NotBefore) / 100 * time.Duration(p.SharePercent))
	switch {
	case atOnce:
		return Decision{Step: Begin, Hurry: true, Why: fmt.Sprintf("requested immediately (%q)", w.AtOnce)}
	case w.Asked != "" && w.Asked != s.Handled:
		return Decision{Step: Begin, Why: fmt.Sprintf("requested (%q)", w.Asked)}
	case !now.Before(due):
		return Decision{Step: Begin, Why: fmt.Sprintf("%d %% of the lifetime of the signing root has passed", p.SharePercent)}
	}
	return Decision{Again: due.Sub(now), Why: "the next rotation begins at " + stamp(due)}
}

// spread waits until whoever may meet a certificate of the next root trusts it.
func spread(now time.Time, s State, w World, p Policy) Decision {
	untold, unconfirmed := macs(w)
	d := Decision{Unconfirmed: len(unconfirmed)}
	// What an expired root signed is good no more: nobody could be cut off.
	hurry := s.Hurry || !now.Before(s.Signing.NotAfter)
	over := s.SpreadSince.Add(p.Spread)
	switch {
	case !w.GatewaysTold && !s.SpreadSince.IsZero():
		d.Step, d.Why = Respread, "another writer changed the gateways' Secret"
	case !w.GatewaysTold:
		d.Why = "the gateways' Secret does not contain the next root yet"
	case s.SpreadSince.IsZero():
		d.Step, d.Why = Spread, "the gateways' Secret contains both roots"
	case len(untold) > 0:
		d.Why = "Secrets of these Macs do not contain the next root yet: " + some(untold)
	case hurry:
		d.Step, d.Why = Sign, "confirmations are not required"
	case now.Before(over):
		d.Again, d.Why = over.Sub(now), "gateways have time to read the next root until "+stamp(over)
	case len(unconfirmed) > 0:
		d.Why = "these live Macs have not confirmed that they trust the next root: " + some(unconfirmed)
	default:
		d.Step, d.Why = Sign, "gateways had time to read the next root, and all live Macs trust it"
	}
	return d
}

// retire waits until nothing is left that the old root signed.
func retire(now time.Time, s State, atOnce bool) Decision {
	switch {
	case s.Hurry || atOnce:
		return Decision{Step: End, Why: "an immediate rotation was requested"}
	case now.Before(s.OldUntil):
		return Decision{Again: s.OldUntil.Sub(now), Why: "certificates of the old root may be valid until " + stamp(s.OldUntil)}
	}
	return Decision{Step: End, Why: "all certificates of the old root have expired"}
}

// macs are the names of those whose Secret is not written, and of those that
// live and did not confirm.
func macs(w World) (untold, unconfirmed []string) {
	for _, m := range w.Macs {
		if !m.Told {
			untold = append(untold, m.Name)
		}
		if m.Lives && !m.Confirmed {
			unconfirmed = append(unconfirmed, m.Name)
		}
	}
	return untold, unconfirmed
}

// named is how many names a sentence holds.
const named = 5

func some(names []string) string {
	slices.Sort(names)
	if len(names) <= named {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:named], ", "), len(names)-named)
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
