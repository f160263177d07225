package serve

import (
	"metalfleet.dev/metalfleet/api/intake"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/metal/wire"
)

// keptBytes is what one log-probability takes until the answer is complete: the value, and
// its JSON without the token, which has a number for each of the token's bytes.
const (
	keptBytes     = 160
	keptTextBytes = 8
	keptStep      = 64 << 10
)

// kept counts the log-probabilities that one answer keeps in memory because it cannot be
// sent in parts. They are many times as large as its text.
type kept struct {
	room   *intake.Bodies
	tenant string
	// uncounted are the bytes since the last step.
	uncounted int64
	releases  []func()
}

// add counts more tokens. Its error refuses the answer.
func (k *kept) add(tokens []*wire.TokenLogprobs) error {
	for _, t := range tokens {
		for _, l := range append(t.GetTop(), t.GetChosen()) {
			k.uncounted += keptBytes + keptTextBytes*int64(len(l.GetText()))
		}
	}
	if k.uncounted < keptStep {
		return nil
	}
	release, err := k.room.Hold(k.tenant, k.uncounted)
	if err != nil {
		return openai.Invalid("logprobs", "the log-probabilities of this answer, or of its prompt, need more memory than is left for answers that are not sent in parts; "+
			"request fewer, set stream, or send a shorter prompt with echo")
	}
	k.uncounted, k.releases = 0, append(k.releases, release)
	return nil
}

func (k *kept) release() {
	for _, release := range k.releases {
		release()
	}
}

// keep counts what of an event stays in memory: the log-probabilities of an echoed prompt,
// and those of the text if the whole answer is sent, or stored, at its end.
func (a answer) keep(k *kept, d *wire.Delta, whole bool) error {
	if err := k.add(d.GetPrompt().GetLogprobs()); err != nil {
		return err
	}
	if _, stored := a.form.(*responseForm); whole || stored {
		return k.add(d.GetLogprobs())
	}
	return nil
}
