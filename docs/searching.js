// How the search ranks its results: pages for users before those on what is inside.
const ROOMS = [
  [/^(quickstart|tutorial\/|guides\/)/, 12],
  [/^(servers|examples|migration)\//, 4],
  [/^(spark|reference)\//, 0],
  [/^(protocol|comparison|design)\/|^changes$/, -12],
];

var Scorer = {
  score: ([docname, , , , score]) => {
    const room = ROOMS.find(([pattern]) => pattern.test(docname));
    return score + (room ? room[1] : 0);
  },
  // The rest is as Sphinx has it.
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
