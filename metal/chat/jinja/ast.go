package jinja

// node is a statement.
type node interface{ at() int }

type position struct{ line int }

func (p position) at() int { return p.line }

type (
	dataNode struct {
		position
		text string
	}
	outputNode struct {
		position
		value expr
	}
	ifNode struct {
		position
		tests  []expr
		bodies [][]node // one more than tests where there is an else
	}
	forNode struct {
		position
		target    target
		items     expr
		filter    expr // may be nil
		body      []node
		otherwise []node
		recursive bool
	}
	setNode struct {
		position
		target target
		value  expr
	}
	setBlockNode struct {
		position
		target  target
		body    []node
		filters expr // over a captureExpr; nil for none
	}
	macroNode struct {
		position
		name string
		signature
		body []node
	}
	callNode struct {
		position
		call *callExpr
		signature
		body []node
	}
	filterNode struct {
		position
		filters expr // over a captureExpr
		body    []node
	}
	withNode struct {
		position
		targets []target
		values  []expr
		body    []node
	}
	// scopeNode is a generation block: a function of its own, called once.
	scopeNode struct {
		position
		signature
		body []node
	}
	printNode struct {
		position
		values []expr
	}
	breakNode    struct{ position }
	continueNode struct{ position }
)

// signature is what a macro takes; defaults belong to the last parameters.
type signature struct {
	params   []string
	defaults []expr
	// Of the special names, those that the body mentions.
	usesCaller, usesKwargs, usesVarargs bool
}

// target is what a value is assigned to: a name, an attribute of a namespace,
// or several of these.
type target struct {
	name  string
	attr  string // of the namespace called name; empty for a plain name
	parts []target
}

// expr is an expression.
type expr interface{ at() int }

type (
	constExpr struct {
		position
		value any
	}
	nameExpr struct {
		position
		name string
	}
	listExpr struct {
		position
		items []expr
		tuple bool
	}
	dictExpr struct {
		position
		keys, values []expr
	}
	unaryExpr struct {
		position
		op string // not, -, +
		of expr
	}
	binaryExpr struct {
		position
		op          string
		left, right expr
	}
	concatExpr struct {
		position
		parts []expr
	}
	compareExpr struct {
		position
		first expr
		ops   []string
		rest  []expr
	}
	condExpr struct {
		position
		test, then expr
		otherwise  expr // may be nil
	}
	attrExpr struct {
		position
		of   expr
		name string
	}
	itemExpr struct {
		position
		of, key expr
	}
	sliceExpr struct {
		position
		of               expr
		from, to, stride expr // each may be nil
	}
	callExpr struct {
		position
		of expr
		arguments
	}
	filterExpr struct {
		position
		of   expr
		name string
		arguments
	}
	testExpr struct {
		position
		of   expr
		name string
		arguments
	}
	// captureExpr stands for the text of a block.
	captureExpr struct{ position }
)

type arguments struct {
	positional []expr
	names      []string
	named      []expr
	spread     expr // *args, may be nil
	spreadKw   expr // **kwargs, may be nil
}
