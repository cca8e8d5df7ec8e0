// Package forest reads forests of decision trees with treelite's shared library and evaluates them in C of its own.
//
// treelite knows the formats: XGBoost's three, LightGBM's, and its own, which scikit-learn's models are saved in. Its
// evaluation (GTIL) is not used: it adds in another order than XGBoost and scikit-learn do, and in float where they have
// double, so that answers differ in the last bits; and it believes the indices that a file brings.
//
// # Processes
//
// A damaged file may crash treelite or make it ask for all memory. So a file is read by a process of its own, this very
// program started again (Child), with bounds on its memory; it writes the forest as one block without pointers into
// memory that the caller then seals, checks index by index, and maps. treelite's library is never loaded anywhere else, and is not
// needed any more when the file is read.
//
// # Sums
//
// A row's sums are made in the order and the type of the library that the model is from: the base score first, then tree
// by tree; in float for XGBoost, in double for LightGBM and scikit-learn. TestPredictsAsItsLibrary holds it to the last bit.
package forest
