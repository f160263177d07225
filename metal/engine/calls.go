package engine

import (
	"context"
	"errors"

	"metalfleet.dev/metalfleet/metal/engine/constraint"
	"metalfleet.dev/metalfleet/metal/engine/output"
	"metalfleet.dev/metalfleet/metal/grammar"
	"metalfleet.dev/metalfleet/metal/text"
	"metalfleet.dev/metalfleet/metal/toolcall"
)

// toolsParam is the field of a request that has the tools.
const toolsParam = "tools"

// toolCalls returns the parser of the calls that a request allows, and holds its sequence
// to the form that the parser reads.
func (p *inputProcessor) toolCalls(ctx context.Context, s *sequence, r Request) (*output.Calls, *Refusal) {
	if r.Chat == nil || len(r.Chat.Tools) == 0 {
		return nil, invalid("tools", "tool calls are requested but there are no tools")
	}
	format := p.text.Calls()
	if format == toolcall.None {
		return nil, invalid("tools", "this engine does not know the tool-call format of this model's chat template (supported: %s); send the request without tools, or use a model whose template has a supported format", toolcall.Names())
	}
	held, refusal := p.holdTools(r)
	if refusal != nil {
		return nil, refusal
	}
	s.tools = held
	tools, refusal := p.readTools(ctx, r)
	if refusal != nil {
		return nil, refusal
	}
	if _, declared := tools[r.Calls.Name]; r.Calls.Name != "" && !declared {
		return nil, invalid("tool_choice", "tool_choice requires %q, but no tool has that name", r.Calls.Name)
	}
	calls := output.NewCalls(p.tok, format, r.Calls.Single)
	other := r.Constraint != nil && !r.Calls.Required
	form, param, refusal := p.constrainCalls(ctx, r, s.tokens, format.Grammar(tools, toolcall.Hold{
		Tokens: calls.Markers(), Required: r.Calls.Required || other, Name: r.Calls.Name, Single: r.Calls.Single, Strict: r.Calls.Strict}))
	if refusal != nil {
		return nil, refusal
	}
	s.constraint, s.constraintParam = form, param // released with its sequence
	marks, err := calls.Parse(tools, form != nil && !other)
	if err != nil {
		return nil, invalid("tools", "%v", err)
	}
	if form != nil {
		form.SetMarks(marks)
	}
	return calls, nil
}

// readTools reads the tools of a request. Those of a long one wait for its turn among long
// texts: while they are read they take many times their bytes. Others need a place like short texts.
func (p *inputProcessor) readTools(ctx context.Context, r Request) (toolcall.Tools, *Refusal) {
	turns := p.textTurns(r.owner())
	defer turns.give()
	if turns.take(ctx, r.bytes() > longBytes) != nil {
		return nil, cancelled()
	}
	tools, err := toolcall.ReadTools(r.Chat.Tools)
	if err != nil {
		return nil, invalid("tools", "%v", err)
	}
	return tools, nil
}

// constrainCalls compiles the form of calls, and the other form that an answer may have. If
// calls are optional and not strict, an answer is not held to a form that cannot be
// compiled: what is not a call is text then.
func (p *inputProcessor) constrainCalls(ctx context.Context, r Request, prompt []int32, calls *grammar.Calls) (*constraint.State, string, *Refusal) {
	form := &Constraint{Spec: grammar.Spec{Kind: grammar.Functions, Calls: calls}, Param: toolsParam}
	switch other := r.Constraint; {
	case r.Calls.Required:
		form.Param = "tool_choice"
	case other != nil:
		form.Else, form.Param = &other.Spec, other.Param
	}
	r.Constraint = form
	state, refusal := p.constrain(ctx, r, prompt)
	if refusal != nil && calls.Free && !r.Calls.Strict && ctx.Err() == nil {
		return nil, "", nil
	}
	return state, form.Param, refusal
}

// callsHaveReasoning reports whether the parser of calls also separates reasoning.
func callsHaveReasoning(t *text.Text) bool { return t.Calls() == toolcall.Harmony }

// constrain compiles the constraint of a request.
func (p *inputProcessor) constrain(ctx context.Context, r Request, prompt []int32) (*constraint.State, *Refusal) {
	if len(p.ends) == 0 {
		return nil, invalid(r.Constraint.Param, "this model has no end-of-sequence token, so its output cannot be constrained")
	}
	var thinking text.Thinking
	if r.Chat != nil && (r.Constraint.Calls == nil || !callsHaveReasoning(p.text)) {
		thinking = p.text.Reasoning().After(p.tok, prompt)
	}
	state, err := p.constraints.Compile(ctx, r.owner(), r.Constraint.Spec, thinking)
	if errors.Is(err, grammar.ErrBusy) {
		return nil, &Refusal{Kind: QueueFull, Param: r.Constraint.Param, Message: err.Error(), RetryAfter: retryAfter}
	}
	if err != nil {
		return nil, invalid(p.paramAtFault(ctx, r.owner(), r.Constraint), "%v", err)
	}
	checked := false
	defer func() {
		if !checked { // also in a panic
			state.Release()
		}
	}()
	if p.continues(r, prompt) {
		state.Continue()
	}
	if err := state.Check(ctx); err != nil {
		return nil, invalid(r.Constraint.Param, "%v", err)
	}
	checked = true
	return state, nil
}

// paramAtFault is the field of a constraint that cannot be compiled. If it has two parts,
// it is that of the one that cannot be compiled by itself.
func (p *inputProcessor) paramAtFault(ctx context.Context, tenant string, c *Constraint) string {
	if c.Else == nil {
		return c.Param
	}
	_, release, err := p.constraints.Table(ctx, tenant, *c.Else)
	if err != nil {
		return c.Param
	}
	release()
	return toolsParam
}
