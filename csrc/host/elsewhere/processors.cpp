// Systems other than Linux do not say where threads are, or cannot move them.
#include "host/processors.h"

namespace fb {

int this_thread() { return 0; }
int this_processor() { return 0; }
int processor_after(int processor) { return processor; }
bool stands_still(int) { return true; }
void move_thread(int, int) {}

}  // namespace fb
