// Where threads run. Only Linux says it and lets them be moved.
#pragma once

namespace fb {

int this_thread();  // the system's number of the calling thread
int this_processor();
// The next processor, in a circle, on which the calling thread may run.
int processor_after(int processor);
// Whether a thread of this process does not advance: it waits for a processor, or for a page. Takes 15 microseconds.
// Elsewhere than on Linux the answer is always yes.
bool stands_still(int thread);
// Moves a thread to a processor. Afterwards it may go wherever it could before. Nothing happens if it may not run
// there, or if the system refuses. Two threads must not move the same one at a time: see Seat::move.
void move_thread(int thread, int processor);

}  // namespace fb
