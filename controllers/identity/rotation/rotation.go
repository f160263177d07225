// Package rotation decides how the operator's authority moves from one root to the next
// without a failed handshake.
//
// It owns the order of the steps and the condition for each. A root does not sign before
// gateways and living Macs trust it, and is not dropped while one of its certificates can
// be valid, unless the rotation is forced. It is pure: it reads a state and a snapshot of
// the fleet, and uses no network.
//
//	Settled --Begin--> Publishing --Spread--> Spreading --Sign--> Retiring --End--> Settled
//	                       ^---------Respread-----|
//
// Every step is one write of one Secret, so that an operator that stops between two writes
// leaves a state that the next one continues from.
//
// Start reading at Decide.
package rotation

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Root is the relevant part of a root certificate.
type Root struct {
	// Fingerprint is the SHA-256 of the certificate, in hex.
	Fingerprint string
	NotAfter    time.Time
}

// State is the stored state of the authority.
type State struct {
	// Signing is the root of new certificates.
	Signing Root
	// IssuedUntil is an upper bound for the expiry of certificates that Signing signed.
	IssuedUntil time.Time
	// Next is a root that is trusted and signs nothing yet.
	Next *Root
	// SpreadSince is when Next was first seen in the gateways' Secret; zero: it was not.
	SpreadSince time.Time
	// Old is a root that is trusted and signs nothing any more.
	Old *Root
	// OldUntil is an upper bound for the expiry of certificates that Old signed.
	OldUntil time.Time
	// Hurry: this rotation waits for no confirmation, because a key was leaked.
	Hurry bool
	// Handled and HandledAtOnce are the values of the annotations of the last rotation that
	// was begun for them.
	Handled, HandledAtOnce string
}

// Stage is the stage of a rotation.
type Stage string

// Stages. Each valid Secret is in exactly one.
const (
	Settled    Stage = "Settled"    // one root, which signs
	Publishing Stage = "Publishing" // two roots; not every Secret has both
	Spreading  Stage = "Spreading"  // both are published; waiting until the next one is trusted
	Retiring   Stage = "Retiring"   // the next one signs; certificates of the old one are still valid
)

// Stages returns all of them, in their order.
func Stages() []Stage { return []Stage{Settled, Publishing, Spreading, Retiring} }

// Stage returns the stage of the rotation.
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

// World is a snapshot of the fleet.
type World struct {
	// Asked and AtOnce are the values of the annotations that request a rotation, and one
	// that waits for no confirmation.
	Asked, AtOnce string
	// GatewaysUpdated: the gateways' Secret has the roots of the state.
	GatewaysUpdated bool
	Macs            []Mac
}

// Mac is the relevant part of a Mac.
type Mac struct {
	Name string
	// Updated: its Secret has the roots of the state.
	Updated bool
	// Lives: it renewed its Lease within the last 180 s. A Mac that does not live blocks
	// nothing: it reads its Secret before it serves again.
	Lives bool
	// Confirmed: it reports that it trusts the next root.
	Confirmed bool
}

// Policy is the pace of rotations.
type Policy struct {
	// Spread is how long gateways have to read a root before it signs.
	Spread time.Duration
	// Lead is how long before the signing root expires a rotation begins by itself.
	Lead time.Duration
}

// Step is the next action.
type Step string

// Steps. Each is one write.
const (
	Wait     Step = ""
	Begin    Step = "Begin"    // create the next root and publish it with the signing one
	Spread   Step = "Spread"   // record that gateways have both roots
	Respread Step = "Respread" // clear that: their Secret has changed meanwhile
	Sign     Step = "Sign"     // the next root signs from now on
	End      Step = "End"      // the old root is no longer trusted
)

// Decision is a step, or what is awaited.
type Decision struct {
	Step Step
	// Hurry is for Begin: the rotation waits for no confirmation.
	Hurry bool
	// Why explains why it begins or what it waits for.
	Why string
	// Again is when to look again if nothing changes before; 0: never.
	Again time.Duration
	// Unconfirmed counts the living Macs that do not trust the next root yet.
	Unconfirmed int
}

// Decide returns the next action.
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

// begin decides whether it is time for the next root. A next root that has signed nothing
// is replaced in a forced rotation: a leak of one key is a leak of both.
func begin(now time.Time, s State, w World, p Policy, atOnce bool) Decision {
	due := s.Signing.NotAfter.Add(-p.Lead)
	switch {
	case atOnce:
		return Decision{Step: Begin, Hurry: true, Why: fmt.Sprintf("requested immediately (%q)", w.AtOnce)}
	case w.Asked != "" && w.Asked != s.Handled:
		return Decision{Step: Begin, Why: fmt.Sprintf("requested (%q)", w.Asked)}
	case !now.Before(due):
		return Decision{Step: Begin, Why: "the signing root expires at " + stamp(s.Signing.NotAfter)}
	}
	return Decision{Again: due.Sub(now), Why: "the next rotation begins at " + stamp(due)}
}

// spread waits until every peer that may receive a certificate of the next root trusts it.
func spread(now time.Time, s State, w World, p Policy) Decision {
	outdated, unconfirmed := macs(w)
	d := Decision{Unconfirmed: len(unconfirmed)}
	// Certificates of an expired root are invalid: no peer can be cut off.
	hurry := s.Hurry || !now.Before(s.Signing.NotAfter)
	over := s.SpreadSince.Add(p.Spread)
	switch {
	case !w.GatewaysUpdated && !s.SpreadSince.IsZero():
		d.Step, d.Why = Respread, "another writer changed the gateways' Secret"
	case now.Before(s.SpreadSince.Add(-time.Second)): // it is stored rounded up
		d.Step, d.Why = Respread, "the clock that measured how long gateways have both roots was ahead"
	case !w.GatewaysUpdated:
		d.Why = "the gateways' Secret does not contain the next root yet"
	case s.SpreadSince.IsZero():
		d.Step, d.Why = Spread, "the gateways' Secret contains both roots"
	case len(outdated) > 0:
		d.Why = "Secrets of these Macs do not contain the next root yet: " + some(outdated)
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

// retire waits until no certificate of the old root can be valid.
func retire(now time.Time, s State, atOnce bool) Decision {
	switch {
	case s.Hurry || atOnce:
		return Decision{Step: End, Why: "an immediate rotation was requested"}
	case now.Before(s.OldUntil):
		return Decision{Again: s.OldUntil.Sub(now), Why: "certificates of the old root may be valid until " + stamp(s.OldUntil)}
	}
	return Decision{Step: End, Why: "all certificates of the old root have expired"}
}

// macs returns the names of the Macs whose Secret is outdated, and of those that live and
// did not confirm.
func macs(w World) (outdated, unconfirmed []string) {
	for _, m := range w.Macs {
		if !m.Updated {
			outdated = append(outdated, m.Name)
		}
		if m.Lives && !m.Confirmed {
			unconfirmed = append(unconfirmed, m.Name)
		}
	}
	return outdated, unconfirmed
}

// named is the maximum number of names in a message.
const named = 5

func some(names []string) string {
	slices.Sort(names)
	if len(names) <= named {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:named], ", "), len(names)-named)
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
